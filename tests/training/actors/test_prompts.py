"""Prompts over sampling.max_prompt_tokens: left out in a way that follows from the position alone."""

import pytest

from grre_jax.errors import DataError
from grre_jax.training import build, preflight
from grre_jax.training.actors import calls
from grre_jax.training.actors.explorer import make_explorer

TASK = """
from grre_jax.tasks import Question, Verdict
from grre_jax.tasks.datasets.arithmetic import Arithmetic
class Mine:
    name = "mine"
    tokenizer = Arithmetic().tokenizer
    def question(self, position):
        text = "1+2+3+4>" if position % 10 in (3, 4) else f"1+{position % 9}>"
        return Question(f"q{position % 10}", text, "2")
    def evaluation(self, count):
        return [Question(f"e{n}", "1+1>" if n % 2 else "1+1+1+1>", "2") for n in range(count)]
    def verify(self, question, completion): return Verdict(0.0)
def build(): return Mine()
"""


@pytest.fixture
def parts(make_config, tmp_path):
    """`parts()` are those of a run whose prompts have 4 tokens, but for two of ten."""
    (tmp_path / "mine.py").write_text(TASK)

    def made(limit=4):
        words = f"--task.name {tmp_path / 'mine.py'}:build --sampling.max_prompt_tokens {limit}"
        words += " --warm-start.steps 0"
        return build.build(make_config(tmp_path / "run", words))

    return made


def test_a_position_takes_the_next_question_that_fits(parts):
    explorer = make_explorer(parts())
    for positions in ([3, 0, 4, 5, 13], [3], [13, 4]):
        for position, question in zip(positions, explorer.questions(positions), strict=True):
            wanted = position % 10
            assert question.question_id == f"q{5 if wanted in (3, 4) else wanted}"


def test_evaluation_leaves_out_what_does_not_fit(parts):
    made = parts()
    kept = calls.evaluation_questions(made)
    count = made.config.evaluation.questions
    assert [question.question_id for question in kept] == [f"e{n}" for n in range(1, count, 2)]


def test_a_run_none_of_whose_prompts_fit_is_refused(parts, monkeypatch):
    monkeypatch.setattr(calls, "MOST_SKIPPED", 20)
    with pytest.raises(DataError, match=r"sampling\.max_prompt_tokens = 3"):
        preflight.check_prompts(parts(limit=3))
