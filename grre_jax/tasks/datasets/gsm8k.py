"""GSM8K: 8,792 grade-school word problems (Cobbe et al., "Training Verifiers to Solve Math Word
Problems", arXiv 2110.14168).

The questions come from JSON-lines files as the authors publish them
(`{"question": ..., "answer": "... #### 18"}` a line), from Parquet as on Hugging Face
(openai/gsm8k), or from there.

A base model goes on with another question after the answer: end its completions there with
`--sampling.stop "['\\n\\nQuestion:']"` and `--evaluation.stop "['\\n\\nQuestion:']"`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from grre_jax.domains import Count
from grre_jax.errors import DataError
from grre_jax.json_files import require
from grre_jax.tasks.datasets.stored_questions import Entry, Record, StoredQuestions
from grre_jax.tasks.verifiers.final_number import final_answer, first_number, verify_number

_ANNOTATION = re.compile(r"<<[^<>\n]*>>")


@dataclass(eq=False, repr=False)
class GSM8K(StoredQuestions):
    """The task; see the module's text. Of a single file to train on nothing is held out unless
    `held_out` is set.

    Args:
        path: a folder with train.jsonl and test.jsonl, or with Parquet files such as
            main/train-00000-of-00001.parquet, or one file to train on. None: downloaded from
            Hugging Face.
        template: the prompt, with {question} where the question goes, for instance
            "{question}\\nThink step by step, and give the final number after ####."

    Attributes:
        name: "gsm8k".
    """

    name = "gsm8k"
    hub = ("openai/gsm8k", "main/{split}-*.parquet")
    hub_test = True
    trusted_verifier = True

    held_out: Count | None = 0
    template: str = "{question}"

    verify = staticmethod(verify_number)
    final_answer = staticmethod(final_answer)

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        text = require(record.get("question"), str, where, "question")
        solution = require(record.get("answer"), str, where, "answer")
        _, marker, answer = solution.rpartition("####")
        if not marker or first_number(answer) is None:
            raise DataError(f"{where}: answer: expected '#### NUMBER' at its end, got {solution!r}")
        return [self._entry(split, text, answer.strip(), _ANNOTATION.sub("", solution))]
