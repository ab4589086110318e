"""reasoning-gym's data sets as tasks."""

from functools import partial

import pytest

from grre_jax import tasks
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.verifiers.reasoning_gym import _is_harmless

pytest.importorskip("reasoning_gym")
build = partial(tasks.build, "reasoning_gym")

# The data sets whose scorers run texts.
EVALUATED = ("binary_matrix", "spiral_matrix", "n_queens", "string_insertion", "countdown")
EVALUATED += ("puzzle24", "polynomial_multiplication", "simple_integration", "number_sorting")
EVALUATED += ("intermediate_integration",)


@pytest.fixture(scope="module")
def chain():
    return build(dataset="chain_sum", size=60, config={"max_digits": 2})


def test_scores(chain):
    question = chain.question(0)
    verdict = chain.verify(question, f"so <answer>{question.answer}</answer>")
    assert verdict == tasks.Verdict(1.0, {"score": 1.0, "correct": 1.0})
    assert chain.verify(question, "x" * 20_000).reward == 0
    other = build(dataset="chain_sum", size=60, config={"min_digits": 4})
    with pytest.raises(DataError, match=question.question_id):
        other.verify(question, question.answer)
    for name in ("gsm8k/train/0", "7", "reasoning_gym/chain_sum/60"):
        with pytest.raises(DataError, match=name):
            other.verify(tasks.Question(name, "1 + 1", "2"), "2")


def test_what_is_refused():
    with pytest.raises(UsageError, match=r"^dataset: .*'chain_sums'"):
        build(dataset="chain_sums")
    with pytest.raises(UsageError, match="^config: .*chain_sum"):
        build(config={"digits": 2})
    for option in ("seed", "size"):
        with pytest.raises(UsageError, match=f"^config: .*{option}"):
            build(config={option: 50})
    late = build(dataset="decimal_arithmetic", size=40, config={"max_num_decimal_places": 1})
    with pytest.raises(UsageError, match="^config: .*decimal_arithmetic"):
        late.question(1)


def test_a_data_set_without_questions_enough(chain, monkeypatch):
    monkeypatch.setattr("grre_jax.tasks.datasets.reasoning_gym._is_held_out", lambda entry: True)
    with pytest.raises(DataError, match="^size: "):
        chain.question(0)


@pytest.fixture(scope="module")
def evaluating():
    return {name: build(dataset=name, size=30) for name in EVALUATED}


@pytest.mark.parametrize("name", EVALUATED)
def test_no_answer_runs_code(evaluating, name, tmp_path):
    task, mark = evaluating[name], tmp_path / "ran"
    run = f"__import__('os').system('touch {mark}')"
    answers = f"""{run} | [{run}] | [[{run}]] | (lambda: {run})() | eval("{run}") | S("{run}")
        | sin("{run}") | 1 if {run} else 2 | open('{mark}', 'w') | [open('{mark}', 'w') for A in 'A']
        | ().__class__.__init__({run}) | {run}# | f'{{{run}}}' | x.__class__({run}) | exp({run})
        | \uff3f_import__('os').system('touch {mark}') | 'A'[{run}] | [A:={run}]"""
    for answer in (*answers.split(" | "), f"1 + 1\n{run}"):
        assert task.verify(task._question(1), f"<answer>{answer}</answer>").reward == 0, answer
        assert not mark.exists(), answer


@pytest.mark.parametrize(
    "name, answer",
    [("prime_factorization", "I cannot"), ("boxnet", "7"), ("game_of_life", '{"a": [1]}')],
)
def test_what_the_package_raises_on_is_not_right(name, answer):
    task = build(dataset=name, size=20)
    with pytest.raises((ArithmeticError, AttributeError, LookupError, TypeError, ValueError)):
        task._entries.score_answer(answer, task._entries[0])
    assert task.verify(task._question(0), answer).components == {"score": 0.0, "correct": 0.0}


def test_a_scorer_that_raises_on_its_own_answer_is_an_error(chain, monkeypatch):
    monkeypatch.setattr(chain._entries, "score_answer", lambda answer, entry: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        chain.verify(chain.question(0), "5")


def test_the_data_sets_of_a_composite_keep_their_rules(tmp_path):
    from reasoning_gym.composite import DatasetSpec

    specs = [
        DatasetSpec(name=name, weight=1.0, config={})
        for name in ("n_queens", "leg_counting", "countdown")
    ]
    task = build(dataset="composite", size=30, config={"datasets": specs})
    for number in range(12):
        question = task._question(number)
        assert task.verify(question, question.answer).reward == 1
        assert task.verify(question, f"__import__('os').system('touch {tmp_path}/ran')").reward == 0
        assert not (tmp_path / "ran").exists()


def test_part_marks_are_a_component():
    task = build(dataset="spell_backward", size=20)
    question = task._question(0)
    assert task.verify(question, question.answer).reward == 1
    nearly = task.verify(question, question.answer[:-1])
    assert 0 < nearly.components["score"] < 1 and nearly.correct is False and nearly.reward == 0


def test_what_a_list_or_an_expression_is(evaluating):
    task = evaluating["countdown"]
    for answer in ("1 + (2*3)/4.5 - x**2", "sin(x) + exp(2)", "[1, 2.5]", "'A', 'B'"):
        assert _is_harmless(answer, task._entries[0])
    for answer in ("f(x) + open(y)", "x.y()", "a.b()", "S('1')", "{1: 2}", "x if y else f(z)"):
        assert not _is_harmless(answer, task._entries[0])
