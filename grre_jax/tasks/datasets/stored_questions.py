"""Base of the tasks over published data sets: questions by name, a training stream in epochs, and
held-out questions.

A question is named by a hash of its text and both sides are ordered by these names, so stream and
evaluation are the same whatever the order of the files and their records.

Where the data set has a test split, it is what evaluation reads, and no question of it is trained
on. Where it has one file alone, the questions with the smallest hashes are held out, whatever the
seed.
"""

import abc
import collections
import hashlib
import itertools
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from grre_jax import domains, random_streams
from grre_jax.domains import Count, Positive, Seed, checked
from grre_jax.errors import DataError, UsageError
from grre_jax.tasks.datasets import stored_records
from grre_jax.tasks.datasets.stored_records import Record
from grre_jax.tasks.task import Question, check_template

_log = logging.getLogger(__name__)

MOST_HELD_OUT = 500
Entry = tuple[str, Question]  # a question with its family


@dataclass(eq=False, repr=False)
class StoredQuestions(domains.Record, abc.ABC):
    """The base of such tasks, whose fields are their options. Nothing is read before the first
    question is asked.

    Args:
        seed: orders the epochs of training.
        path: a folder with the files of train and perhaps test, also one of
            `datasets.save_to_disk`, or one file to train on. None: as published, downloaded.
        test_path: a file to evaluate on, or a folder of such.
        held_out: questions held out where there is no test split, at least; None for a tenth of
            them, at most MOST_HELD_OUT.
        most_prompt_characters: longer prompts are left out, of training and evaluation; 0 for no
            limit.

    Attributes:
        name: the task's.
        hub: (name, files or None) of the data set on Hugging Face, read where there is no `path`;
            {split} in the files' names is "train" or "test".
        hub_test: whether `hub` has a test split.
        training_source, evaluation_source: names for provenance.
        unusable: records and turns left out so far because they give no answer to judge by.

    Raises:
        UsageError: an option out of its domain, or `test_path` without `path`.
    """

    name: ClassVar[str]
    hub: ClassVar[tuple[str, str | None]]
    hub_test: ClassVar[bool] = False

    seed: Seed = 0
    path: str | Path | None = None
    test_path: str | Path | None = None
    held_out: Count | None = 500
    most_prompt_characters: Count = 0

    def __post_init__(self):
        super().__post_init__()
        if self.test_path is not None and self.path is None:
            raise UsageError(
                f"test_path={str(self.test_path)!r} goes with path=, the data to train on: pass"
                " both."
            )
        self.path = Path(self.path) if self.path else None
        self.test_path = Path(self.test_path) if self.test_path else None
        check_template(getattr(self, "template", "{question}"))
        self.unusable = 0
        self._first_unusable = "none"
        self.training_source = f"{self.name}/train"
        self.evaluation_source = f"{self.name}/test"

    @abc.abstractmethod
    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        """Family and question for each question of a record; of one family either all questions
        are held out or none. DataError names `where`.
        """

    def question(self, position: int) -> Question:
        """The question at a position of the training stream.

        Raises:
            UsageError: a position that is no place of a stream.
            DataError: the data cannot be read; the message says what to pass.
        """
        return self._training[self._order[position]]

    def evaluation(self, count: int) -> list[Question]:
        """The first `count` held-out questions, in the order of their names, or all of them if
        there are fewer.

        Raises:
            DataError: the data cannot be read; the message says what to pass.
        """
        return self._evaluation[: checked("count", Positive, count)]

    def _entry(
        self, split: str, text: str, answer: str, solution: str | None = None, family: str = ""
    ) -> Entry:
        """A question named by its text, in its template if the task has one."""
        name = digest(text)
        prompt = getattr(self, "template", "{question}").replace("{question}", text)
        question = Question(f"{self.name}/{split}/{name}", prompt, answer, solution)
        return family or name, question

    def _leave_out(self, where: str, why: str) -> None:
        if not self.unusable:
            self._first_unusable = f"{where}: {why}"
            _log.warning("%s: it is left out, as are others like it", self._first_unusable)
        self.unusable += 1

    def all_questions(self) -> list[Question]:
        """The questions of training and evaluation.

        Raises:
            DataError: as `question`.
        """
        return [*self._training, *self._evaluation]

    @property
    def _ways(self) -> str:
        return (
            f"pass {self.name}'s option path=FILE_OR_FOLDER (task.options.path) with the data set's"
            " Parquet, JSON or JSON-lines files"
        )

    @cached_property
    def _order(self) -> random_streams.EpochStream:
        return random_streams.EpochStream(self.seed, len(self._training))

    @cached_property
    def _training(self) -> list[Question]:
        out = {family for family, _ in self._held_out}
        return self._side("train on", [entry for entry in self._train if entry[0] not in out])

    @cached_property
    def _evaluation(self) -> list[Question]:
        return self._side("evaluate on", self._held_out)

    @cached_property
    def _train(self) -> list[Entry]:
        return self._read("train", self._sources("train"))

    @cached_property
    def _held_out(self) -> list[Entry]:
        sources = self._sources("test")
        if sources is not None:
            return self._read("test", sources)
        sizes = collections.Counter(family for family, _ in self._train)
        families = sorted(sizes, key=digest)
        before = itertools.accumulate((sizes[family] for family in families), initial=0)
        wanted = self.held_out
        if wanted is None:
            wanted = min(MOST_HELD_OUT, max(1, len(self._train) // 10))
        out = {family for family, count in zip(families, before, strict=False) if count < wanted}
        return [entry for entry in self._train if entry[0] in out]

    def _side(self, what: str, entries: list[Entry]) -> list[Question]:
        unique = {question.question_id: question for _, question in entries}
        if unique:
            return [unique[name] for name in sorted(unique)]
        raise DataError(
            f"{self.name} has no question to {what} in {self.path or self.hub[0]}: {self.unusable}"
            f" records or turns are left out ({self._first_unusable}), as are prompts over"
            f" most_prompt_characters={self.most_prompt_characters}. Questions of the test split or"
            f" held_out={self.held_out} without one, are not trained on: {self._ways}."
        )

    def _read(self, split: str, sources: Iterable[tuple[str, Iterable[Record]]]) -> list[Entry]:
        most = self.most_prompt_characters or math.inf
        return [
            entry
            for source, records in sources
            for number, record in enumerate(records, 1)
            for entry in self._questions_of(split, record, f"{source}, record {number}")
            if len(entry[1].prompt) <= most
        ]

    def _sources(self, split: str) -> list[tuple[str, Iterable[Record]]] | None:
        """Names and records of a split's files; None for a test split that there is not."""
        if self.path is None:
            name, files = self.hub
            if split == "test" and not self.hub_test:
                return None
            files = files and files.format(split=split)
            return [(name, stored_records.from_hub(name, split, self._ways, files))]
        for option in ("path", "test_path"):
            given = getattr(self, option)
            if given is not None and not given.exists():
                raise DataError(
                    f"task.options.{option} = {str(given)!r} does not exist: name a file or folder"
                    f" that does, with {self.name}'s Parquet, JSON or JSON-lines files."
                )
        own = split == "test" and self.test_path is not None
        folder = self.test_path if own else self.path
        if not folder.is_dir():
            return self._records_of([folder]) if own or split == "train" else None
        files = self._files_of(folder, split)
        lone = stored_records.data_files(folder)
        if not files and own:
            files = lone
        elif not files and split == "test":
            return None
        elif not files and not self._files_of(folder, "test"):
            # Published in one file, such as ToolACE's data.json, or saved without a split.
            saved = all(file.suffix == ".arrow" and file.parent == folder for file in lone)
            files = lone if saved or len(lone) == 1 else []
        if not files:
            has = [str(file.relative_to(folder)) for file in lone]
            raise DataError(
                f"{folder} holds no {split} files (such as {split}.parquet, {split}.jsonl or"
                f" {split}/*.json; it has {', '.join(has[:8]) or 'no data'}): {self._ways}."
            )
        return self._records_of(files)

    def _records_of(self, files: list[Path]) -> list[tuple[str, Iterable[Record]]]:
        return [(str(file), stored_records.read_records(file)) for file in files]

    def _files_of(self, folder: Path, split: str) -> list[Path]:
        return stored_records.files_of(folder, split)


def digest(text: str) -> str:
    """Twelve hexadecimal digits of a text's hash; white space does not matter."""
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()[:12]
