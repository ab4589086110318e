"""Base of the tasks over published data sets: questions by name, a training stream in epochs, and
held-out questions; their records from Parquet, JSON and JSON-lines files as they were downloaded,
or through Hugging Face `datasets`.

A question is named by a hash of its text and both sides are ordered by these names, so stream and
evaluation are the same whatever the order of the files and their records.

Where the data set has a test split, it is what evaluation reads, and no question of it is trained
on. Where it has one file alone, the questions with the smallest hashes are held out, whatever the
seed.
"""

import abc
import contextlib
import hashlib
import json
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from grre_jax import domains, random_streams
from grre_jax.domains import Count, Positive, Seed, checked
from grre_jax.errors import DataError
from grre_jax.json_files import json_lines, require
from grre_jax.tasks.judging import error_words
from grre_jax.tasks.task import Question, check_template

_log = logging.getLogger(__name__)

MOST_HELD_OUT = 500
ROWS_AT_ONCE = 64  # of a Parquet file, in memory
_ENDINGS = (".parquet", ".jsonl", ".json")

Entry = tuple[str, Question]  # a question with its family
Record = dict[str, Any]


@dataclass(eq=False, repr=False)
class HeldOutQuestions(domains.Record, abc.ABC):
    """Questions in epochs, without those that are held out. Nothing is read before the first
    question is asked.

    Args:
        seed: orders the epochs of training.
        held_out: questions held out without a test split, at least; None for a tenth of
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
    def _records(self, split: str) -> Iterable[tuple[str, Record]] | None:
        """Records of a split with their places; None for a test split that there is not."""

    def question(self, position: int) -> Question:
        """The question at a position of the training stream.

        Raises:
            UsageError: a position out of the stream.
            DataError: the data cannot be read; the message names the expected argument.
        """
        return self._training[self._order[position]]

    def evaluation(self, count: int) -> list[Question]:
        """The first `count` held-out questions, in the order of their names, or all of them if
        there are fewer.

        Raises:
            DataError: the data cannot be read; the message names the expected argument.
        """
        return self._evaluation[: checked("count", Positive, count)]

    def _entry(
        self,
        split: str,
        text: str,
        answer: str,
        solution: str | None = None,
        family: str = "",
        messages: tuple[dict[str, str], ...] | None = None,
    ) -> Entry:
        """A question named by its text, in its template if the task has one."""
        name = digest(text)
        prompt = self.template.replace("{question}", text)
        question = Question(f"{self.name}/{split}/{name}", prompt, answer, solution, messages)
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
        return self._side([entry for entry in self._train if entry[0] not in out])

    @cached_property
    def _evaluation(self) -> list[Question]:
        return self._side(self._held_out)

    @cached_property
    def _train(self) -> list[Entry]:
        return self._read("train") or []

    @cached_property
    def _held_out(self) -> list[Entry]:
        entries = self._read("test")
        if entries is not None:
            return entries
        count = self.held_out
        if count is None:
            count = min(MOST_HELD_OUT, max(1, len(self._train) // 10))
        entries = sorted(self._train, key=lambda entry: digest(entry[0]))
        out = {family for family, _ in entries[:count]}
        return [entry for entry in self._train if entry[0] in out]

    def _side(self, entries: list[Entry]) -> list[Question]:
        unique = {question.question_id: question for _, question in reversed(entries)}
        if unique:
            return [unique[name] for name in sorted(unique)]
        raise DataError(
            f"task {self.name}: expected questions to train on and others to evaluate on, got none"
            f" of them with held_out={self.held_out} and"
            f" most_prompt_characters={self.most_prompt_characters}"
        )

    def _read(self, split: str) -> list[Entry] | None:
        """The entries of a split; None for a test split that there is not."""
        records = self._records(split)
        if records is None:
            return None
        most = self.most_prompt_characters or math.inf
        return [
            entry
            for where, record in records
            for entry in self._questions_of(split, record, where)
            if len(entry[1].prompt) <= most
        ]


@dataclass(eq=False, repr=False)
class StoredQuestions(HeldOutQuestions):
    """The base of such tasks, whose fields are their options.

    Args:
        path: a folder with the files of train and perhaps test, or one file to train on. None: as
            published, downloaded.

    Attributes:
        hub: (name, files or None) of the data set on Hugging Face, read where there is no `path`;
            {split} in the files' names is "train" or "test".
        hub_test: whether `hub` has a test split.
    """

    hub: ClassVar[tuple[str, str | None]]
    hub_test: ClassVar[bool] = False

    path: str | Path | None = None

    def _records(self, split: str) -> Iterable[tuple[str, Record]] | None:
        if self.path:
            path = Path(self.path)
            if path.is_file():
                files = [path] if split == "train" else []
            else:
                files = files_of(path, split)
            if not files and split == "train":
                raise DataError(
                    "task.options.path: expected a file, or a folder with files such as"
                    f" train.parquet or train/*.json, got {str(path)!r}"
                )
            located = (
                (f"{file}, record {number}", record)
                for file in files
                for number, record in enumerate(read_records(file), 1)
            )
            return located if files else None
        if split == "test" and not self.hub_test:
            return None
        name, files = self.hub
        records = from_hub(name, split, files and files.format(split=split))
        return ((f"{name}, record {number}", record) for number, record in enumerate(records, 1))


def digest(text: str) -> str:
    """Twelve hexadecimal digits of a text's hash; white space does not matter."""
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()[:12]


# ---- records


def files_of(path: Path, split: str) -> list[Path]:
    """The files of a split ("train" or "test") below a folder, in the order of their names; none
    without any.

    Taken are SPLIT.parquet, SPLIT.jsonl and SPLIT.json, SPLIT-*.parquet (shards) at any depth, and
    everything below a folder SPLIT.
    """

    def of_split(file: Path) -> bool:
        parts = file.relative_to(path).parts
        hidden = any(part.startswith(".") for part in parts)  # such as macOS's "._1.json"
        shard = file.suffix == ".parquet" and file.stem.startswith(f"{split}-")
        named = shard or file.stem == split or split in parts[:-1]
        return named and not hidden and file.suffix in _ENDINGS and file.is_file()

    return sorted(filter(of_split, path.rglob("*")))


def read_records(file: Path) -> Iterator[Record]:
    """The records of a file: a line of .jsonl, an object of the list in a .json (or the one object
    that it is), a row of Parquet under any other name.

    Raises:
        DataError: the file is missing, damaged, or has other content, which the message names.
    """
    if file.suffix == ".jsonl":
        with _reading(file, "JSON lines"), file.open("rb") as lines:
            yield from (record for _, record in json_lines(lines, file))
    elif file.suffix == ".json":
        # A file with an object a line has to be named .jsonl.
        with _reading(file, "one JSON value"):
            content = json.loads(file.read_bytes())
        for number, record in enumerate(content if isinstance(content, list) else [content], 1):
            yield require(record, dict, file, f"record {number}")
    else:
        yield from table_rows(file)


def from_hub(name: str, split: str, data_files: str | None = None) -> Iterable[Record]:
    """The records of a split of a data set on Hugging Face, by the library `datasets`, which
    keeps what it downloads; or of a folder that its `save_to_disk` wrote.

    Args:
        name: the data set, "Team-ACE/ToolACE", or the folder.
        split: as the data set names it.
        data_files: the files of the split, where it is not by name.

    Raises:
        DataError: the library is not installed, or the data set is neither kept nor to be
            downloaded.
    """
    try:
        import datasets

        if (Path(name) / "state.json").exists():
            return datasets.load_from_disk(name)
        files = {"data_files": {split: data_files}} if data_files else {}
        return datasets.load_dataset(name, split=split, **files)
    except (ImportError, OSError, ValueError) as error:
        raise DataError(
            f"path: expected files, as {name} is neither kept by the package datasets (extra hub)"
            f" nor to be downloaded ({error_words(error)})"
        ) from error


def table_rows(file: Path) -> Iterator[Record]:
    """The rows of a Parquet file.

    Raises:
        DataError: the file is missing or damaged, or two columns have one name.
    """
    from pyarrow import parquet

    with _reading(file, "Parquet"):
        for batch in parquet.ParquetFile(file).iter_batches(ROWS_AT_ONCE):
            names = batch.schema.names
            if len(set(names)) < len(names):
                raise ValueError(f"two columns have one name, of {', '.join(names)}")
            yield from batch.to_pylist()


@contextlib.contextmanager
def _reading(file: Path, form: str) -> Iterator[None]:
    """A context in which an error of a parser becomes a DataError that names the file."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, RecursionError, RuntimeError) as error:
        raise DataError(
            f"{file} cannot be read as {form} ({error_words(error)}). Give it as published."
        ) from error
