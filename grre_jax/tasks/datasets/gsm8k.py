"""GSM8K: 8,792 grade-school word problems (Cobbe et al., "Training Verifiers to Solve Math Word
Problems", arXiv 2110.14168).

The questions come from JSON-lines files as the authors publish them
(`{"question": ..., "answer": "... #### 18"}` a line), from Parquet as on Hugging Face
(openai/gsm8k), or from there.

A base model goes on with another question after the answer: end its completions there with
`--sampling.stop "['\\n\\nQuestion:']"` and `--evaluation.stop "['\\n\\nQuestion:']"`.
"""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from grre_jax.domains import Count
from grre_jax.errors import DataError
from grre_jax.json_files import require
from grre_jax.tasks.datasets.stored_questions import Entry, StoredQuestions
from grre_jax.tasks.datasets.stored_records import Record
from grre_jax.tasks.verifiers.final_number import final_answer, first_number, verify_number

_ANNOTATION = re.compile(r"<<[^<>\n]*>>")


@dataclasses.dataclass(eq=False, repr=False)
class GSM8K(StoredQuestions):
    """The task; see the module's text. Nothing is held out of one file to train on.

    Args:
        path: a folder with train.jsonl and test.jsonl, or with Parquet files such as
            main/train-00000-of-00001.parquet, or one file to train on. None: downloaded from
            Hugging Face.
        template: the prompt, with {question} where the question goes, for instance
            "{question}\\nThink step by step, and give the final number after ####."
        annotations: whether demonstrations keep GSM8K's calculator annotations, such as
            <<48/2=24>>.

    Attributes:
        name: "gsm8k".
    """

    name = "gsm8k"
    hub = ("openai/gsm8k", "main/{split}-*.parquet")
    hub_test = True
    trusted_verifier = True

    held_out: Count = dataclasses.field(default=0, init=False)  # no option of this task
    template: str = "{question}"
    annotations: bool = False

    verify = staticmethod(verify_number)
    final_answer = staticmethod(final_answer)

    def _files_of(self, folder: Path, split: str) -> list[Path]:
        """Hugging Face's second form, "socratic", has the same questions."""
        files = super()._files_of(folder, split)
        return [file for file in files if "socratic" not in file.relative_to(folder).parts]

    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        text = require(record.get("question"), str, where, "question")
        solution = require(record.get("answer"), str, where, "answer")
        _, marker, answer = solution.rpartition("####")
        if not marker or first_number(answer) is None:
            raise DataError(f"{where}: answer: expected '#### NUMBER' at its end, got {solution!r}")
        if not self.annotations:
            solution = _ANNOTATION.sub("", solution)
        return [self._entry(split, text, answer.strip(), solution)]
