"""reasoning-gym's data sets as tasks."""

import pytest

from grre_jax import tasks
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.judging import Failure, verdict_of
from grre_jax.tasks.verifiers import reasoning_gym as judged

pytest.importorskip("reasoning_gym")

# The data sets whose scorers run texts; how else than the stored one an answer may be written.
EVALUATED = {
    "binary_matrix": lambda answer: str(
        [[int(cell) for cell in row.split()] for row in answer.split("\n")]
    ),
    "spiral_matrix": lambda answer: str([int(cell) for cell in answer.split()]),
    "n_queens": lambda answer: str([row.split() for row in answer.split("\n")]),
    "string_insertion": lambda answer: str(list(answer)),
    "countdown": lambda answer: f"( {answer} )",
    "puzzle24": lambda answer: f"( {answer} )",
    "polynomial_multiplication": lambda answer: f"-(-({answer}))",
    "simple_integration": lambda answer: f"({answer.replace('C', 'K')})/2 + ({answer})/2 - pi",
    "intermediate_integration": lambda answer: (
        f"{answer.replace('exp(x)', 'E**x').replace('log', 'ln')} + sin(x)**2 + cos(x)**2"
    ),
}
HOSTILE = [
    *("9**9**9**9", "9^9^9^9", "(9**99)**(9**99)", "factorial(10**8)", "10000000!", "2**(10**9)"),
    *(
        "exp(10**9*log(9))",
        "E**(-10**9*log(9))",
        "binomial(10**9, 10**5)",
        "N(pi, 10**7)",
        "Integral(x, x)",
    ),
    *(
        "1e999999999",
        "1e-999999999",
        "1E-999999999",
        "nan",
        "[NaN, NaN]",
        "\0",
        "9" * 9_900,
        "1 " * 4_900,
    ),
    *(
        "sin(cos(tan(exp(x))))**9",
        "(x+y+z+a+b)**99",
        "tan(x)**99+sin(x)**99/cos(x)**9",
        "exp(" * 60 + "9" + ")" * 60,
    ),
    *(
        "1+" * 4_900 + "1",
        "-" * 9_900 + "1",
        "1*" * 900 + "1",
        "9**99*" * 300 + "1",
        "1/" * 4_900 + "1",
    ),
    *(
        "(" * 9_900,
        "[" * 9_900,
        "(" * 150 + "1" + ")" * 150,
        "U3" * 4_900,
        "U3 " * 3_300,
        "F999999999",
        "F+9" * 3_300,
        "F+999999999",
    ),
    *("¬" * 9_900, "¬" * 299 + "A", "(" * 150 + "A" + ")" * 150, "(A∨¬" * 50 + "A" + ")" * 50),
]


@pytest.fixture(scope="module")
def chain():
    return tasks.build("reasoning_gym", dataset="chain_sum", size=60, config={"max_digits": 2})


def test_the_stream_goes_past_what_is_held_out(chain):
    held_out = {question.prompt for question in chain.evaluation(60)}
    drawn = [chain.question(place) for place in range(120)]
    assert 0 < len(held_out) < 20 and held_out.isdisjoint(question.prompt for question in drawn)
    again = tasks.build(
        "reasoning_gym", dataset="chain_sum", size=60, config={"max_digits": 2}, seed=5
    )
    assert {question.prompt for question in again.evaluation(60)} == held_out
    assert [again.question(p) for p in range(9)] != drawn[:9]
    assert chain.evaluation(1) == chain.evaluation(60)[:1]
    assert chain.training_source == "reasoning_gym/chain_sum/train"


def test_scores(chain):
    question = chain.question(0)
    assert chain.verify(question, f"so <answer>{question.answer}</answer>") == tasks.Verdict(
        1.0, {"score": 1.0, "correct": 1.0}
    )
    assert chain.verify(question, "x" * 20_000).reward == 0
    other = tasks.build(
        "reasoning_gym", dataset="chain_sum", size=60, config={"min_digits": 5, "max_digits": 6}
    )
    failed = verdict_of(other, question, question.answer)
    assert isinstance(failed, Failure) and "with these options" in failed.reason


def test_what_is_refused():
    with pytest.raises(UsageError, match=r"no data set 'chain_sums' \(did you mean 'chain_sum'"):
        tasks.build("reasoning_gym", dataset="chain_sums")
    with pytest.raises(UsageError, match="chain_sum refuses the options"):
        tasks.build("reasoning_gym", config={"digits": 2})
    for option in ("seed", "size"):
        with pytest.raises(UsageError, match=f"^config.{option}: "):
            tasks.build("reasoning_gym", config={option: 50})
    with pytest.raises(UsageError, match="has no {question}"):
        tasks.build("reasoning_gym", template="x")
    late = tasks.build(
        "reasoning_gym", dataset="decimal_arithmetic", size=40, config={"max_num_decimal_places": 1}
    )
    for ask in (late.question, late.evaluation):
        with pytest.raises(
            UsageError, match="decimal_arithmetic cannot make entry .*empty range.*correct config"
        ):
            ask(1)
    for value in (1, 0.5, "yes", None):
        with pytest.raises(UsageError, match=f"partial_credit={value!r} is neither true nor false"):
            tasks.build("reasoning_gym", partial_credit=value)


def test_a_data_set_without_questions_enough(chain, monkeypatch):
    monkeypatch.setattr("grre_jax.tasks.datasets.reasoning_gym._is_held_out", lambda entry: True)
    with pytest.raises(DataError, match="nothing but held-out questions"):
        chain.question(0)


@pytest.fixture(scope="module")
def evaluating():
    return {name: tasks.build("reasoning_gym", dataset=name, size=30) for name in EVALUATED}


@pytest.mark.parametrize("name", EVALUATED)
def test_no_answer_runs_code(evaluating, name, tmp_path):
    task, mark = evaluating[name], tmp_path / "ran"
    run = f"__import__('os').system('touch {mark}')"
    for answer in (
        *(
            run,
            f"[{run}]",
            f"[[{run}]]",
            f"(lambda: {run})()",
            f'eval("{run}")',
            f'S("{run}")',
            f'sin("{run}")',
            f"1 if {run} else 2",
        ),
        *(
            f"open('{mark}', 'w')",
            f"[open('{mark}', 'w') for A in 'A']",
            f"().__class__.__init__({run})",
        ),
        *(f"1 + 1\n{run}", f"{run}#", f"f'{{{run}}}'"),
        *(
            f"x.__class__({run})",
            f"exp({run})",
            f"\uff3f_import__('os').system('touch {mark}')",
            f"'A'[{run}]",
            f"[A:={run}]",
        ),
    ):
        assert task.verify(task._question(1), f"<answer>{answer}</answer>").reward == 0, answer
        assert not mark.exists(), answer


@pytest.mark.parametrize("name", EVALUATED)
def test_answers_are_as_good_as_the_package_says(evaluating, name):
    task = evaluating[name]
    for number in range(6):
        question, entry = task._question(number), task._entries[number]
        for answer in (question.answer, EVALUATED[name](question.answer)):
            score = task._entries.score_answer(answer, entry)
            verdict = task.verify(question, f"<answer>{answer}</answer>")
            right = float(answer == question.answer or score == 1)
            assert (
                verdict == tasks.Verdict(right, {"score": score, "correct": right})
                or "Integral" in answer
            )
    assert task.verify(question, "<answer>I cannot do that</answer>").reward == 0


@pytest.mark.parametrize(
    "name",
    [
        *EVALUATED,
        "coin_flip",
        "complex_arithmetic",
        "number_sorting",
        "propositional_logic",
        "rubiks_cube",
        "rush_hour",
    ],
)
def test_no_answer_takes_long(name):
    task = tasks.build("reasoning_gym", dataset=name, size=20)
    question, entry = task._question(3), task._entries[3]
    task._entry_of = lambda question: entry  # making it may take long
    for answer in HOSTILE:
        assert task.verify(question, f"<answer>{answer}</answer>").reward < 0.9, answer


@pytest.mark.parametrize(
    "name, answer",
    [("prime_factorization", "I cannot"), ("boxnet", "7"), ("game_of_life", '{"a": [1]}')],
)
def test_what_the_package_raises_on_is_not_right(name, answer):
    task = tasks.build("reasoning_gym", dataset=name, size=20)
    with pytest.raises((ArithmeticError, AttributeError, LookupError, TypeError, ValueError)):
        task._entries.score_answer(answer, task._entries[0])
    assert task.verify(task._question(0), answer) == tasks.Verdict(
        0.0, {"score": 0.0, "correct": 0.0}
    )


def test_a_scorer_that_raises_on_its_own_answer_is_an_error(chain, monkeypatch):
    monkeypatch.setattr(chain._entries, "score_answer", lambda answer, entry: 1 / 0)
    failed = verdict_of(chain, chain.question(0), "5")
    assert isinstance(failed, Failure)
    assert failed.kind == "error"
    assert "ZeroDivisionError" in failed.reason


def test_every_data_set_that_names_an_evaluator_was_read():
    from reasoning_gym.factory import DATASETS

    found = {name for name, (dataset, _) in DATASETS.items() if judged._evaluates(dataset)}
    assert found >= EVALUATED.keys()
    assert found <= judged._CHARACTERS.keys() | judged._NAMES.keys() | judged._OWN_TEXTS


def test_a_data_set_that_nobody_has_read(evaluating, monkeypatch):
    monkeypatch.delitem(judged._CHARACTERS, "spiral_matrix")
    task, asked = evaluating["spiral_matrix"], []
    question = task._question(0)
    monkeypatch.setattr(
        task._entries, "score_answer", lambda answer, entry: asked.append(answer) or 1.0
    )
    taken = [question.answer, "[1, [2.5]]", "3*x**2 + 1", "7 8"]
    for answer in (
        *taken,
        "f(1)",
        "x.y",
        "__x__",
        "import os",
        "'a'",
        "9**9**9",
        "sin(x)",
        "Paris",
    ):
        task.verify(question, answer)
    assert asked == taken


def test_the_data_sets_of_a_composite_keep_their_rules(tmp_path):
    from reasoning_gym.composite import DatasetSpec

    specs = [
        DatasetSpec(name=name, weight=1.0, config={})
        for name in ("n_queens", "leg_counting", "countdown")
    ]
    task = tasks.build("reasoning_gym", dataset="composite", size=30, config={"datasets": specs})
    for number in range(12):
        question = task._question(number)
        assert task.verify(question, question.answer).reward == 1
        assert task.verify(question, f"__import__('os').system('touch {tmp_path}/ran')").reward == 0
        assert not (tmp_path / "ran").exists()


# The stored answers of numbers: 18 of ab is empty, 1 of propositional_logic gives Q, Q, Q → P and
# Q.
RIGHT_AND_WRONG = [
    ("ab", 18, ["<answer></answer>", "<answer> </answer>"], ["", " ", "nothing", "A# B#"]),
    ("coin_flip", 0, ["1", "1.0", "8/8", "0.99999"], ["10", "100", "0", "0.9", "0.999"]),
    ("coin_flip", 1, ["0.3125", "5/16", "10/32", "0.31250"], ["0", "0.3", "3", "31.25", "5/0"]),
    (
        "countdown",
        1,
        ["94*4 - 61 - 6", "4*94-(61+6)"],
        ["309", "94*4 - 67", "94*4 - 61 - 6 + 1 - 1", "61 + 94 + 6 + 4"],
    ),
    ("game_of_life_halting", 1, ["False", "false"], ["True", "no", "0", "I cannot", "Not False"]),
    (
        "gsm_symbolic",
        1,
        ["44", "72 - 28 = 44", "**44** pebbles"],
        ["44 or 45", "not 44", "72 - 28", "45", "44.5"],
    ),
    (
        "number_sorting",
        1,
        ["[52.2, 30, 14, -49, -81]"],
        ["[52.2, 30, 14, -49, -80.5]", "[53, 30, 14, -49, -81]", "[]", "52"],
    ),
    (
        "polynomial_equations",
        1,
        ["-3.625, 0", "0.0, -3.6250", "-3.62501,0"],
        ["0", "-3.6, 0", "x, -3.625, 0", "-3.625, 0, 0", ""],
    ),
    (
        "propositional_logic",
        1,
        ["P", "(P ∧ Q)", "Q ∧ P"],
        ["Q", "Q ∧ Q", "P ∨ Q", "Q ∧ (Q → P)", "Q → Q", "¬P", "Z", "P says PQ"],
    ),
    (
        "puzzle24",
        1,
        ["10*(8-5)-6", "(8 - 5)*10 - 6"],
        ["6+6+6+6", "24", "1*2*3*4", "8+5+10+6", "10*8/5+6+0", "8**5-10-6"],
    ),
    (
        "quantum_lock",
        1,
        ["B→B→B→B", "B B B B", "bbbb"],
        ["Bob Bobb", "BBB", "I press B, B, B and B"],
    ),
    (
        "decimal_arithmetic",
        0,
        ["-12.582507840", "-12.58250784", "-12.582507841"],
        ["-12.5825", "-12.583", "12.58250784", "0", "nan"],
    ),
    ("decimal_arithmetic", 2, ["7.023159", "7.0231590"], ["7.02316", "7.023158", "7.023"]),
    (
        "fraction_simplification",
        1,
        ["138/583", "\\frac{138}{583}"],
        ["138/583 or 1", "138/584", "276/1166", "138", "13524/57134"],
    ),
    (
        "kakurasu",
        1,
        ["1 0 1 0\n0 0 0 1\n1 0 0 0\n0 1 0 0", "1010\n0001\n1000\n0100"],
        ["not 1 0 1 0\n0 0 0 1\n1 0 0 0\n0 1 0 0", "1 0 0 0\n0 0 0 1\n1 0 0 0\n0 1 0 0"],
    ),
    (
        "letter_jumble",
        1,
        ["Fritz Napoleon Smith s system a system", "fritz napoleon smith s system a system"],
        ["Fritz Napoleon Smith s system a system or not", "Fritz Napoleon Smith s system a"],
    ),
    (
        "spell_backward",
        0,
        ["noremopyh"],
        ["noremopyhx", "noremopyh noremopyh", "noremopy", "hypomeron"],
    ),
    (
        "survo",
        2,
        ["2 6 3 11\n5 5 4 14\n1 3 7 11\n8 14 14 36"],
        [
            "not 2 6 3 11\n5 5 4 14\n1 3 7 11\n8 14 14 36",
            "2 6 3 11\n5 4 5 14\n1 3 7 11\n8 14 14 36",
        ],
    ),
    (
        "word_sorting",
        2,
        ["They, WARRANTY, niggard"],
        ["They, WARRANTY, niggard, They", "They, niggard, WARRANTY", "They, WARRANTY"],
    ),
    ("time_intervals", 0, ["5 days", "5", "5 day"], ["5 weeks", "5 hours", "6 days", "50"]),
]


@pytest.mark.parametrize("name, number, right, wrong", RIGHT_AND_WRONG)
def test_what_is_right_is_not_what_scorers_pay(name, number, right, wrong):
    task = tasks.build("reasoning_gym", dataset=name, size=20)
    question = task._question(number)
    verdicts = {answer: task.verify(question, answer) for answer in (*right, *wrong)}
    assert [answer for answer, verdict in verdicts.items() if verdict.reward == 1] == right
    assert all(verdict.reward == verdict.components["correct"] for verdict in verdicts.values())


def test_boards_and_moves():
    from reasoning_gym.factory import DATASETS

    def is_right(name, given, /, score=1.0, **entry):
        return judged.is_right(given, score, {"answer": None, **entry}, name, DATASETS[name][0])

    jam = {"metadata": {"board_config": "o" * 12 + "AAoBoo" + "oooBoo" + "o" * 12}}
    assert is_right("rush_hour", "B+2 A+4", **jam)
    assert is_right("rush_hour", "A+1 B+1, B+1 A+3", **jam)
    for moves in ("A+4", "B+2 A+5", "B+3 A+4", "B-3 B+2 A+4", "B+2 A+3", "C+1 B+2 A+4"):
        assert not is_right("rush_hour", moves, **jam)
    board = "[[0,0],[0,1]]"
    assert is_right("game_of_life", "[[0, 0], [0, 1]]", answer=board)
    for other in ("[[0,0,0],[0,1,0]]", "[[0,0],[0,1],[0,0]]", "[[0,0],[0,0]]", "[]"):
        assert not is_right("game_of_life", other, answer=board)
    assert is_right("figlet_font", "Long Lettered", answer="LONGLETTERED")
    assert not is_right("figlet_font", "longletteral", answer="LONGLETTERED")
    assert is_right("tower_of_hanoi", "moves", score=0.5)
    assert not is_right("tower_of_hanoi", "moves", score=0.05)
    assert is_right("polynomial_equations", '""', answer="")
    assert not is_right("polynomial_equations", "none", answer="")


def test_no_empty_answer_is_right_where_the_package_stores_none_by_fault():
    task = tasks.build(
        "reasoning_gym", dataset="base_conversion", size=40, config={"min_value": 0, "max_value": 3}
    )
    empty = [question for question in map(task._question, range(20)) if not question.answer]
    assert empty
    assert not any(
        task.verify(question, f"<answer>{text}</answer>").reward
        for question in empty
        for text in ("", " ", '""', "0")
    )


def test_part_marks_are_a_component(chain):
    task = tasks.build("reasoning_gym", dataset="spell_backward", size=20)
    question = task._question(0)
    verdict = task.verify(question, question.answer[:-1])
    assert verdict.reward == verdict.components["correct"] == 0 < verdict.components["score"] < 1


def test_partial_credit_pays_the_packages_own_score_and_leaves_correctness():
    def verdicts(name, number, *answers):
        strict, paying = (
            tasks.build("reasoning_gym", dataset=name, size=20, partial_credit=pays)
            for pays in (False, True)
        )
        for answer in answers:
            question = paying._question(number)
            given = paying.verify(question, f"<answer>{answer.format(question.answer)}</answer>")
            judged = strict.verify(question, f"<answer>{answer.format(question.answer)}</answer>")
            assert given.components == judged.components
            assert given.correct is judged.correct
            assert judged.reward == float(judged.correct)
            yield given.reward, given.correct

    right, nearly, longer, nothing = verdicts("spell_backward", 0, "{}", "{:.2}", "{}x", "")
    assert right == (1, True) and nothing == (0, False) and 0 < nearly[0] < 1 and nearly[1] is False
    assert longer == (1, False)  # 1 + 2e-16 of the package's, though it goes on
    # What the package pays in full, though it is wrong; and what it is not asked about.
    assert list(verdicts("puzzle24", 1, "6+6+6+6", "__import__('os')", "9" * 20_000)) == [
        (1, False),
        (0, False),
        (0, False),
    ]
    assert list(verdicts("game_of_life_halting", 1, "I cannot")) == [(1, False)]
    assert list(verdicts("ab", 18, "", "nothing")) == [(1, True), (0, False)]


@pytest.mark.slow
def test_the_stored_answers_of_all_data_sets_keep_their_scores():
    from reasoning_gym.factory import DATASETS

    for name in sorted(DATASETS.keys() - {"composite"}):
        task = tasks.build("reasoning_gym", dataset=name, size=30)
        for number in range(3):
            question, entry = task._question(number), task._entries[number]
            answer = question.answer.strip()
            assert task.verify(question, f"<answer>{answer}</answer>").reward == float(
                question.answer != ""
            ), name
            # Nor are they right only because they are the stored text.
            another = {**entry, "answer": "another"}
            assert (
                not answer
                or "Integral" in answer
                or judged.may_be_scored(answer, another, name, type(task._entries))
            ), name
