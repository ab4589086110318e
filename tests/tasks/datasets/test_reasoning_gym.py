"""reasoning-gym's data sets as tasks."""

from functools import partial

import pytest

from grre_jax import tasks
from grre_jax.errors import DataError, UsageError

pytest.importorskip("reasoning_gym")
build = partial(tasks.build, "reasoning_gym")

# The data sets whose scorers run texts.
EVALUATED = """binary_matrix spiral_matrix n_queens string_insertion countdown puzzle24 number_sorting
    polynomial_multiplication simple_integration intermediate_integration""".split()


def test_scores():
    chain = build(dataset="chain_sum", size=60, config={"max_digits": 2})
    question = chain.question(0)
    verdict = chain.verify(question, f"so <answer>{question.answer}</answer>")
    assert verdict == tasks.Verdict(1.0, {"score": 1.0, "correct": 1.0})
    assert chain.verify(question, "x" * 20_000).reward == 0
    other = build(dataset="chain_sum", size=60, config={"min_digits": 4})
    with pytest.raises(DataError, match=question.question_id):
        other.verify(question, question.answer)


def test_what_is_refused():
    with pytest.raises(UsageError, match=r"^dataset: .*'chain_sums'"):
        build(dataset="chain_sums")
    for option in ("digits", "seed"):
        with pytest.raises(UsageError, match=f"^dataset: .*{option}"):
            build(config={option: 50})


@pytest.mark.parametrize("name", EVALUATED)
def test_no_answer_runs_code(name, tmp_path):
    task, mark = build(dataset=name, size=30), tmp_path / "ran"
    run = f"__import__('os').system('touch {mark}')"
    answers = f"""{run} | [{run}] | [[{run}]] | (lambda: {run})() | eval("{run}") | S("{run}")
        | sin("{run}") | 1 if {run} else 2 | open('{mark}', 'w') | [open('{mark}', 'w') for A in 'A']
        | ().__class__.__init__({run}) | {run}# | f'{{{run}}}' | x.__class__({run}) | exp({run})
        | \uff3f_import__('os').system('touch {mark}') | 'A'[{run}] | [A:={run}]"""
    for answer in (*answers.split(" | "), f"1 + 1\n{run}"):
        assert task.verify(task._question(1), f"<answer>{answer}</answer>").reward == 0, answer
        assert not mark.exists(), answer


def test_what_the_package_raises_on_is_not_right():
    task = build(dataset="prime_factorization", size=20)
    assert task.verify(task._question(0), "I cannot").components == {"score": 0.0, "correct": 0.0}
