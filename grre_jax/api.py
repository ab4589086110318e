"""`grre.train`: a run from Python, with questions and a reward function of one's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from grre_jax.errors import UsageError
from grre_jax.storage.remote import is_url

# Fields of a configuration that differ from its own defaults, which are of a tiny model.
DEFAULTS: dict[str, dict[str, Any]] = {
    "sampling": {"group_size": 8, "max_new_tokens": 128},
    "training": {"prompts_per_step": 16},
    "optimizer": {"learning_rate": 1e-5, "warmup_steps": 5},
    "evaluation": {"questions": 64, "num_samples": 4},
    "checkpoint": {"every": 50},
}
MOST_PROMPT_TOKENS = 1024  # unless sampling.max_prompt_tokens says otherwise
PROMPT_TOKENS = 16  # the limit on prompts is a multiple of this

Rows = Iterable[Mapping[str, Any]]


def train(
    *,
    model: str | os.PathLike[str],
    questions: str | os.PathLike[str] | Rows | Mapping[str, Rows],
    reward: Callable | str | Sequence[Callable | str] | None = None,
    reward_weights: Sequence[float] | None = None,
    objective: str | Mapping[str, Any] = "rec_oneside_nois",
    sync_interval: int = 1,
    steps: int = 100,
    name: str = "train",
    run_dir: str | os.PathLike[str] = "",
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    **fields: Mapping[str, Any],
) -> Run:
    """Trains a language model on questions with a reward function.

    Args:
        model: a Hugging Face folder or a name on the Hub, which is downloaded.
        questions: dictionaries, a file (.jsonl, .json, .parquet), a `datasets.Dataset` or a folder
            of one, with "prompt" (a text or messages) and perhaps "answer"; or two of them by the
            names "train" and "test". A tenth is held out for the evaluation without a test split.
        reward: `(question, completion) -> float | dict | None`, which may be `async`, or
            "FILE.py:FUNCTION"; or several of them. See `grre_jax.tasks.rewards`. None compares the
            completion with the answer.
        reward_weights: of several reward functions; 1 each if None.
        objective: the name of an algorithm, "FILE.py:FUNCTION", or {"name": ..., "options": {...}}.
        sync_interval: steps between two refreshes of the sampler's weights; 1 is on-policy.
        steps: number of updates.
        name: the run's, in its report and its default folder.
        run_dir: path of its folder; runs/NAME if empty.
        seed: of every random draw.
        resume: continue the run in its folder, with the same arguments.
        overwrite: replace it.
        **fields: any other field of the configuration, by its section:
            `optimizer={"learning_rate": 1e-6}, sampling={"group_size": 4}`.

    Returns:
        The finished run.

    Raises:
        UsageError: an argument outside its domain, with its name; or a run is in the folder
            already.
        DataError: the model or the questions are missing or damaged.

    Examples:
        One step of a new model of one layer; `grre fetch` gets a real one:

        >>> import grre_jax as grre
        >>> from grre_jax import models, tasks
        >>> tokenizer = tasks.CharTokenizer("0123456789+=$")
        >>> tokenizer.save("tokenizer")
        >>> config = models.ModelConfig(
        ...     vocab_size=16, hidden_size=8, intermediate_size=16,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, eos_ids=tokenizer.eos_ids,
        ... )
        >>> folder = models.save(models.init(config), "tiny", tokenizer_from="tokenizer")
        >>> run = grre.train(  # doctest: +ELLIPSIS
        ...     model=folder,
        ...     questions=[{"prompt": f"{n}+2=", "answer": str(n + 2)} for n in range(8)],
        ...     reward=lambda question, completion: float(question.answer in completion),
        ...     steps=1,
        ...     sampling={"group_size": 2, "max_new_tokens": 2},
        ...     training={"prompts_per_step": 1},
        ...     evaluation={"questions": 1, "num_samples": 2, "greedy": False},
        ...     logging={"tensorboard": False},
        ... )
        grre_jax
        ...
        >>> run.folder.name, [row["step"] for row in run.evaluations], 0 <= run.accuracy <= 1
        ('train', [0, 1], True)
    """
    from grre_jax.training import loop
    from grre_jax.training.config.run import Config, with_fields

    if is_url(run_dir):
        raise UsageError(
            f"run_dir: expected a path, got {run_dir!r}; `grre train` trains into an object store"
        )
    folder = Path(run_dir or Path("runs") / name)
    if (folder / "config.json").exists() and not (resume or overwrite):
        # Before the questions beside it are replaced.
        raise UsageError(
            f"run_dir: expected a folder without a run, got {str(folder)!r}: continue it with"
            " resume=True, or replace it with overwrite=True"
        )
    named = {
        "name": name,
        "run_dir": str(folder),
        "seed": seed,
        "model": {"path": _model_folder(model)},
        "task": {
            "name": "questions",
            "options": _stored(questions, folder, resume=resume),
            "reward": _reward_names(reward, reward_weights),
        },
        "objective": dict(objective) if isinstance(objective, Mapping) else {"name": objective},
        "regime": {"sync_interval": sync_interval},
        "training": {"steps": steps},
    }
    config = with_fields(Config(name), DEFAULTS)
    # The named fields, then others.
    config = with_fields(with_fields(config, named), fields)
    if "max_prompt_tokens" not in fields.get("sampling", {}):
        limit = _longest_prompt(config)
        config = with_fields(config, {"sampling": {"max_prompt_tokens": limit}})
    return Run(Path(loop.train(config, resume=resume, overwrite=overwrite)))


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: its metrics, rollouts, checkpoints and report.

    Examples:
        A run that was finished earlier, by its folder:

        >>> from pathlib import Path
        >>> import grre_jax as grre
        >>> from grre_jax import reporting
        >>> with reporting.MetricsLog("runs/mine") as log:
        ...     row = log.write("eval", 20, {"accuracy": 0.5})
        >>> run = grre.Run(Path("runs/mine"))
        >>> run.accuracy, run.evaluations[-1]["step"]
        (0.5, 20)
    """

    folder: Path

    @cached_property
    def evaluations(self) -> list[dict[str, float]]:
        """The figures of its evaluations, the first before training."""
        rows = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        return [row for row in rows if row["kind"] == "eval"]

    @property
    def accuracy(self) -> float | None:
        """Share of right sampled completions of the last evaluation; None if it is not known."""
        return self.evaluations[-1].get("accuracy") if self.evaluations else None

    def sample(self, prompt: str | Sequence[str], **params: Any) -> str | list[str]:
        """Samples a completion from the last policy.

        Args:
            prompt: a user's turn, or several, each completed on its own.
            **params: as of `sampling.SamplingParams`, such as temperature; max_new_tokens is the
                run's if not given.

        Returns:
            The text, or one per prompt.

        Raises:
            UsageError: a prompt or a parameter outside its domain.
        """
        from grre_jax import generation
        from grre_jax.sampling_params import SampleOptions, SamplingParams

        policy = self._policy
        limit = {"max_new_tokens": policy.run.sampling.max_new_tokens}
        options = SampleOptions(
            str(self.folder),
            prompt=(prompt,) if isinstance(prompt, str) else tuple(prompt),
            params=SamplingParams(**limit | params),
        )
        drawn = generation.lines(policy, generation.read(options, policy), options)
        texts = [line["completions"][0]["text"] for line in drawn]
        return texts[0] if isinstance(prompt, str) else texts

    @cached_property
    def _policy(self) -> Any:
        """The last policy with its tokenizer."""
        from grre_jax import generation
        from grre_jax.sampling_params import SampleOptions

        return generation.find(SampleOptions(str(self.folder), prompt=("",)))


def _model_folder(model: str | os.PathLike[str]) -> str:
    """Returns the path of a model, downloaded if it is a name on the Hub."""
    path = Path(model)
    if path.exists():
        return str(path)
    from grre_jax.models.checkpoints.fetch import fetch

    return str(fetch(str(model)))


def _reward_names(reward: Any, weights: Sequence[float] | None) -> tuple[str, ...]:
    """Returns reward functions as `task.reward` names them."""
    from grre_jax.tasks import rewards

    entries = [] if reward is None else reward
    entries = list(entries) if isinstance(entries, list | tuple) else [entries]
    if weights is not None and len(weights) != len(entries):
        raise UsageError(
            f"reward_weights: expected one for each of {len(entries)} reward functions, got"
            f" {len(weights)}."
        )
    names = [each if isinstance(each, str) else rewards.register(each) for each in entries]
    return tuple(
        name if weight is None else f"{name}={weight}"
        for name, weight in zip(names, weights or [None] * len(names), strict=True)
    )


def _stored(questions: Any, folder: Path, *, resume: bool) -> dict[str, str]:
    """Returns the options of the task `questions`, for which rows are written beside the run."""
    if isinstance(questions, str | os.PathLike):
        return {"path": str(questions)}
    splits = dict(questions) if isinstance(questions, Mapping) else {"train": questions}
    if not {"train"} <= splits.keys() <= {"train", "test"}:
        raise UsageError(
            "questions: expected rows, or rows by train and test, got"
            f" {', '.join(map(str, splits))}."
        )
    store = folder.parent / f"{folder.name}-questions"
    store.mkdir(parents=True, exist_ok=True)
    for split, rows in ({"test": ()} | splits).items():
        text = "".join(json.dumps(dict(row)) + "\n" for row in rows)
        file = store / f"{split}.jsonl"
        # A test split that there was not changes the questions of training too.
        if resume and (file.read_text() if file.exists() else "") != text:
            raise UsageError(
                f"questions: expected those that the run began with, which {store} holds; resume"
                " it with them, or begin another run."
            )
        if text:
            file.write_text(text)
        else:
            file.unlink(missing_ok=True)
    return {"path": str(store)}


def _longest_prompt(config: Any) -> int:
    """Returns a limit that all questions have room in, at most MOST_PROMPT_TOKENS."""
    from grre_jax.training import build

    task = config.task.build(config.seed)
    tokenizer = build.build_tokenizer(config, task)
    longest = max(len(tokenizer.encode_prompt(question)) for question in task.all_questions())
    return min(-(-longest // PROMPT_TOKENS) * PROMPT_TOKENS, MOST_PROMPT_TOKENS)
