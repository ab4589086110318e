"""Base of the tasks over published data sets: questions by name, a training stream in epochs, and
held-out questions.

A question is named by a hash of its text and both sides are ordered by these names, so stream and
evaluation are the same whatever the order of the files and their records.

Where the data set has a test split, it is what evaluation reads, and no question of it is trained
on. Where it has one file alone, the questions with the smallest hashes are held out, whatever the
seed.
"""

import abc
import hashlib
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from grre_jax import domains, random_streams
from grre_jax.domains import ConfigError, Count, Positive, Seed, checked
from grre_jax.errors import DataError
from grre_jax.tasks.datasets import stored_records
from grre_jax.tasks.datasets.stored_records import Record
from grre_jax.tasks.task import Question, check_template

_log = logging.getLogger(__name__)

MOST_HELD_OUT = 500
Entry = tuple[str, Question]  # a question with its family


@dataclass(eq=False, repr=False)
class HeldOutQuestions(domains.Record, abc.ABC):
    """Questions in epochs, without those that are held out. Nothing is read before the first
    question is asked.

    Args:
        seed: orders the epochs of training.
        held_out: questions held out where there is no test split, at least; None for a tenth of
            them, at most MOST_HELD_OUT.
        most_prompt_characters: longer prompts are left out, of training and evaluation; 0 for no
            limit.

    Attributes:
        name: the task's.
        training_source, evaluation_source: names for provenance.
        unusable: records and turns left out so far because they give no answer to judge by.

    Raises:
        UsageError: an option out of its domain.
    """

    name: ClassVar[str]
    template = "{question}"  # a field of the tasks that have it as an option

    seed: Seed = 0
    held_out: Count | None = 500
    most_prompt_characters: Count = 0

    def __post_init__(self):
        super().__post_init__()
        check_template(self.template)
        self.unusable = 0
        self.training_source = f"{self.name}/train"
        self.evaluation_source = f"{self.name}/test"

    @abc.abstractmethod
    def _questions_of(self, split: str, record: Record, where: str) -> Iterable[Entry]:
        """Family and question for each question of a record; of one family either all questions
        are held out or none. DataError names `where`.
        """

    @abc.abstractmethod
    def _sources(self, split: str) -> list[tuple[str, Iterable[Record]]] | None:
        """Names and records of a split's files; None for a test split that there is not."""

    @property
    @abc.abstractmethod
    def _origin(self) -> str:
        """The data's place, for messages."""

    @property
    @abc.abstractmethod
    def _ways(self) -> str:
        """What to do about data that cannot be used, for messages."""

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
        prompt = self.template.replace("{question}", text)
        question = Question(f"{self.name}/{split}/{name}", prompt, answer, solution)
        return family or name, question

    def _leave_out(self, where: str, why: str) -> None:
        if not self.unusable:
            _log.warning("%s: %s: it is left out, as are others like it", where, why)
        self.unusable += 1

    def all_questions(self) -> list[Question]:
        """The questions of training and evaluation.

        Raises:
            DataError: as `question`.
        """
        return [*self._training, *self._evaluation]

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
        count = self.held_out
        if count is None:
            count = min(MOST_HELD_OUT, max(1, len(self._train) // 10))
        entries = sorted(self._train, key=lambda entry: digest(entry[0]))
        out = {family for family, _ in entries[:count]}
        return [entry for entry in self._train if entry[0] in out]

    def _side(self, what: str, entries: list[Entry]) -> list[Question]:
        unique = {question.question_id: question for _, question in entries}
        if unique:
            return [unique[name] for name in sorted(unique)]
        raise DataError(
            f"{self.name} has no question to {what} in {self._origin}, with"
            f" {self.unusable} records or turns left out, held_out={self.held_out} and"
            f" most_prompt_characters={self.most_prompt_characters}: {self._ways}."
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


@dataclass(eq=False, repr=False)
class StoredQuestions(HeldOutQuestions):
    """The base of such tasks, whose fields are their options.

    Args:
        path: a folder with the files of train and perhaps test, also one of
            `datasets.save_to_disk`, or one file to train on. None: as published, downloaded.
        test_path: a file to evaluate on, or a folder of such.

    Attributes:
        hub: (name, files or None) of the data set on Hugging Face, read where there is no `path`;
            {split} in the files' names is "train" or "test".
        hub_test: whether `hub` has a test split.

    Raises:
        UsageError: an option out of its domain, or `test_path` without `path`.
    """

    hub: ClassVar[tuple[str, str | None]]
    hub_test: ClassVar[bool] = False

    path: str | Path | None = None
    test_path: str | Path | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.test_path and not self.path:
            raise ConfigError("path", "the data to train on, as test_path is given", self.path)

    @property
    def _origin(self) -> str:
        return str(self.path or self.hub[0])

    @property
    def _ways(self) -> str:
        return (
            f"pass {self.name}'s option path=FILE_OR_FOLDER (task.options.path) with the data set's"
            " Parquet, JSON or JSON-lines files"
        )

    def _sources(self, split: str) -> list[tuple[str, Iterable[Record]]] | None:
        """Names and records of a split's files; None for a test split that there is not."""
        if self.path:
            files = self._files(split)
            return files and [(str(file), stored_records.read_records(file)) for file in files]
        if split == "test" and not self.hub_test:
            return None
        name, files = self.hub
        files = files and files.format(split=split)
        return [(name, stored_records.from_hub(name, split, self._ways, files))]

    def _files(self, split: str) -> list[Path] | None:
        """Returns the files of a split in `path` or `test_path`; None without a test split."""
        own = split == "test" and bool(self.test_path)
        path = Path(self.test_path if own else self.path)
        option = "test_path" if own else "path"
        if path.is_file():
            return [path] if own or split == "train" else None
        files = self._files_of(path, split)
        data = stored_records.data_files(path)
        if split == "test" and not own:
            return files or None
        # Published in one file, such as ToolACE's data.json, or saved without a split.
        unsplit = len(data) == 1 or (path / "state.json").exists()
        if own or (unsplit and not self._files_of(path, "test")):
            files = files or data
        if not files:
            raise DataError(
                f"task.options.{option}: expected {split} files, such as {split}.parquet or"
                f" {split}/*.json, in {str(path)!r}, got {len(data)} of other names: {self._ways}."
            )
        return files

    def _files_of(self, folder: Path, split: str) -> list[Path]:
        return stored_records.files_of(folder, split)


def digest(text: str) -> str:
    """Twelve hexadecimal digits of a text's hash; white space does not matter."""
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()[:12]
