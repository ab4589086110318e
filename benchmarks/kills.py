"""Kill -9 of learner and explorers at random moments, many times over: the run that comes out
is, bit for bit, the run that nobody disturbed.

A learner and two explorers train a tiny model through one folder. One of the three is killed
(SIGKILL) again and again and started anew at once: half of the moments are drawn evenly, whatever
the process is doing (starting and compiling included), half wait for the folder to change, where a
seal or a checkpoint is being written, as long as one comes within a few of the longest pauses. When
a run ends before the wanted number of kills, the next one begins with another seed. Every run is
then held against one that was left alone: parameters and optimiser by their bytes, log rows and
groups by value, and every place of the stream must be there once.

Every process is a real one of its own, forked from a server that has imported the package and
nothing more: no backend is started and nothing is compiled there.

    python benchmarks/kills.py --kills 200 --output benchmarks/results/kills.json
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import json
import multiprocessing
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEPS = 40
EXPLORERS = 2
LONGEST = 12.0  # seconds between two kills, at most
PRELOAD = [
    "grre_jax.training.roles",
    "tensorflow_datasets",
    "grain",
    "matplotlib.figure",
    "array_record.python.array_record_module",
]
CLOCKED = ("time", "elapsed", "tokens_per_second", "seconds_")


def even(seed: int = 0) -> Any:
    """A task that a policy of random weights solves now and then, so that a run needs no warm
    start: begin with a digit that is even where the question's first is.
    """
    from grre_jax.tasks import Verdict
    from grre_jax.tasks.datasets.arithmetic import Arithmetic

    class Even:
        name, trusted_verifier, tokenizer = (
            "even",
            True,
            Arithmetic(seed=seed, operands=2).tokenizer,
        )
        question, evaluation = (
            Arithmetic(seed=seed, operands=2).question,
            Arithmetic(seed=seed, operands=2).evaluation,
        )

        def verify(self, question: Any, completion: str) -> Verdict:
            return Verdict(
                float(
                    completion[:1].isdigit()
                    and (int(completion[0]) - int(question.prompt[0])) % 2 == 0
                )
            )

    return Even()


def tiny(folder: Path, seed: int, steps: int) -> Any:
    """A run small enough to be started hundreds of times, in which rewards differ from the first
    step on.
    """
    from grre_jax import config as c

    return c.Config(
        name="kills",
        run_dir=str(folder),
        seed=seed,
        model=c.ModelSource(
            hidden_size=16,
            intermediate_size=32,
            num_layers=1,
            num_heads=2,
            num_kv_heads=2,
            head_dim=8,
        ),
        task=c.TaskConfig(f"{Path(__file__).resolve()}:even"),
        objective=c.ObjectiveConfig("rec_oneside_nois"),
        regime=c.Regime(sync_interval=2),
        sampling=c.SamplingConfig(
            group_size=4, max_prompt_tokens=4, max_new_tokens=2, prompts_per_call=4
        ),
        training=c.TrainingConfig(steps=steps, prompts_per_step=4),
        optimizer=c.OptimizerConfig(learning_rate=1e-2),
        evaluation=c.EvaluationConfig(questions=0),
        checkpoint=c.CheckpointConfig(every=5),
        logging=c.LoggingConfig(tensorboard=False),
    )


def play(role: str, folder: Path, seed: int, steps: int, log: Path) -> None:
    """What a process does, from its start to its end: "alone", "learner" or an explorer's
    number.
    """
    with open(log, "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    from grre_jax.training import loop, roles

    config = tiny(folder, seed, steps)
    if role == "alone":
        loop.train(config)
    elif role == "learner":
        roles.learn(config)
    else:
        roles.explore_run(config, roles.ExplorerRole(role, int(role), EXPLORERS))


@dataclasses.dataclass
class Troupe:
    """The processes of one run."""

    context: Any
    folder: Path
    seed: int
    steps: int

    def __post_init__(self):
        self.names = ("learner", *map(str, range(EXPLORERS)))
        self.running: dict[str, Any] = {}
        self.began: dict[str, float] = {}
        self.ended: set[str] = set()
        self.killed: set[str] = set()

    def start(self, name: str) -> None:
        """Starts a process of that role."""
        log = self.folder.with_name(f"{self.folder.name}.{name}.log")
        self.running[name] = self.context.Process(
            target=play, args=(name, self.folder, self.seed, self.steps, log)
        )
        self.running[name].start()
        self.began[name] = time.monotonic()

    def look(self) -> None:
        """Takes in who has come to his end; an end of another kind is an error."""
        for name, process in list(self.running.items()):
            if process.exitcode is not None:
                if process.exitcode != 0:
                    raise SystemExit(
                        f"{name} ended by itself with {process.exitcode}: see"
                        f" {self.folder.parent}/{self.folder.name}.{name}.log"
                    )
                self.ended.add(name)
                del self.running[name]

    def kill(self, name: str) -> float:
        """Kills a process; returns for how many seconds it had run."""
        process = self.running.pop(name)
        self.killed.add(name)
        lived = time.monotonic() - self.began[name]
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == 0:
            self.ended.add(name)
            return -1.0
        return lived

    def due(self, names: list[str]) -> list[str]:
        """Those of the names that may be killed now: until all have been killed once, those that
        have not.
        """
        return (
            names
            if self.killed >= set(self.names) - self.ended
            else [name for name in names if name not in self.killed]
        )

    def all(self) -> None:
        """Kills what an error has left."""
        for name in list(self.running):
            self.kill(name)


def marks(folder: Path) -> dict[str, Any]:
    """What changes in the folder when somebody publishes: by whom, and what."""
    found = {"learner": [], "explorer": []}
    with contextlib.suppress(OSError):
        found["learner"] = sorted(os.listdir(folder / "checkpoints"))
    with contextlib.suppress(OSError):
        found["explorer"] = sorted(os.listdir(folder / "rollouts" / ".incomplete")) + sorted(
            os.listdir(folder / "rollouts")
        )
    return found


def moment(troupe: Troupe, draw: random.Random, longest: float) -> tuple[str, str] | None:
    """Waits for the next kill; (whom, what the moment was), or None if all have ended meanwhile."""
    at_change, before = draw.random() < 0.5, marks(troupe.folder)
    until = time.monotonic() + (3 * longest if at_change else draw.uniform(0, longest))
    while troupe.running and time.monotonic() < until:
        time.sleep(0.005 if at_change else 0.05)
        troupe.look()
        now = marks(troupe.folder) if at_change else before
        changed = [who for who in now if now[who] != before[who]]
        if changed:
            before = now
            names = troupe.due(
                [name for name in troupe.running if (name == "learner") == ("learner" in changed)]
            )
            if names and draw.random() < 0.3:  # not always the first change after a start
                time.sleep(draw.choice((0.0, 0.002, 0.01, 0.05, 0.2)))
                troupe.look()
                if names := [name for name in names if name in troupe.running]:
                    return draw.choice(names), "change"
    return (draw.choice(sorted(troupe.due([*troupe.running]))), "clock") if troupe.running else None


def disturbed(
    context: Any,
    folder: Path,
    seed: int,
    steps: int,
    kills: int,
    draw: random.Random,
    longest: float,
) -> list[dict[str, Any]]:
    """One run with at most so many kills; what was killed, in order."""
    troupe, done = Troupe(context, folder, seed, steps), []
    try:
        for name in troupe.names:
            troupe.start(name)
        while len(troupe.ended) < len(troupe.names):
            if len(done) < kills:
                if (found := moment(troupe, draw, longest)) is None:
                    continue
                name, kind = found
                lived = troupe.kill(name)
                if lived >= 0:
                    step = newest_step(folder)
                    done.append(
                        {
                            "role": "learner" if name == "learner" else "explorer",
                            "moment": kind,
                            "lived": round(lived, 2),
                            "step": step,
                        }
                    )
                    print(
                        f"{datetime.datetime.now():%H:%M:%S} seed {seed}: kill {len(done)} {name}"
                        f" at {kind}, lived {lived:.1f} s, checkpoint {step}",
                        flush=True,
                    )
                    troupe.start(name)
            else:
                time.sleep(0.1)
                troupe.look()
    finally:
        troupe.all()
    return done


def newest_step(folder: Path) -> int:
    """The newest checkpoint, -1 if there is none."""
    from grre_jax.training.checkpoints.local import listed

    return max(listed(folder / "checkpoints"), default=-1)


def alone(context: Any, folder: Path, seed: int, steps: int) -> None:
    """The same run, left alone in one process."""
    process = context.Process(
        target=play, args=("alone", folder, seed, steps, folder.with_name(f"{folder.name}.log"))
    )
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"the undisturbed run failed: see {folder}.log")


def state_bytes(folder: Path) -> list[bytes]:
    """Every array of the last checkpoint: parameters, optimiser, step."""
    import jax
    import numpy as np

    from grre_jax.training import build, optimizer, state
    from grre_jax.training.checkpoints.local import Checkpoints
    from grre_jax.training.policies import load_config

    config = load_config(folder)
    parts = build.build(config)
    _, like = state.create(parts.model, optimizer.make_optimizer(config.optimizer), parts.mesh)
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    found = checkpoints.restore(like)
    checkpoints.close()
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found)]


def rows(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The log by (kind, step), without what a clock says; a row that is there twice is an error."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        key = (row["kind"], row["step"])
        if key in found:
            raise SystemExit(f"{folder}: row {key} is there twice")
        found[key] = {name: value for name, value in row.items() if not name.startswith(CLOCKED)}
    return found


def compared(folder: Path, expected: Path) -> dict[str, Any]:
    """How a disturbed run differs from the one that was left alone."""
    from grre_jax import rollouts

    def groups(run: Path) -> tuple[dict[Any, Any], int]:
        reader = rollouts.read(run / "rollouts")
        return {
            (group.position, group.attempt, int(group.policy_version[0])): group for group in reader
        }, len(reader)

    (found, count), (wanted, _) = groups(folder), groups(expected)
    return {
        "state_identical": state_bytes(folder) == state_bytes(expected),
        "rows_identical": rows(folder) == rows(expected),
        "groups": len(found),
        "groups_lost": len(wanted.keys() - found.keys()),
        "groups_duplicated": count - len(found),
        "groups_foreign": len(found.keys() - wanted.keys()),
        "groups_different": sum(found[key] != wanted[key] for key in found.keys() & wanted.keys()),
        "verified": rollouts.verify(folder / "rollouts").ok,
        "mean_reward": sum(float(group.rewards.mean()) for group in wanted.values()) / len(wanted),
    }


def good(result: dict[str, Any]) -> bool:
    """Whether nothing differs."""
    clean = not any(
        result[f"groups_{what}"] for what in ("lost", "duplicated", "foreign", "different")
    )
    return clean and result["state_identical"] and result["rows_identical"] and result["verified"]


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Who was killed, and when."""
    return {
        "by_role": dict(collections.Counter(kill["role"] for kill in done)),
        "by_moment": dict(collections.Counter(kill["moment"] for kill in done)),
        "lived_seconds": {
            name: sorted(kill["lived"] for kill in done)[int(q * (len(done) - 1))]
            for name, q in (("min", 0), ("median", 0.5), ("max", 1))
        },
    }


def machine() -> dict[str, Any]:
    """What ran it."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _lines(path: str) -> Iterator[str]:
    with contextlib.suppress(OSError), open(path) as file:
        yield from file


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Runs it; status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the moments, and of the first run")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a run; {STEPS} if not given")
    parser.add_argument(
        "--longest",
        type=float,
        default=LONGEST,
        help=(
            f"seconds between two kills at most; {LONGEST:g} if not given, more where starting"
            " takes long"
        ),
    )
    parser.add_argument("--folder", help="where the runs lie; a temporary folder if not given")
    parser.add_argument("--output", help="write the result here, as JSON")
    given = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    draw, began = random.Random(given.seed), time.monotonic()
    with contextlib.ExitStack() as stack:
        root = Path(given.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        root.mkdir(parents=True, exist_ok=True)
        done, results, seed = [], [], given.seed
        while len(done) < given.kills:
            more = disturbed(
                context,
                root / f"killed-{seed}",
                seed,
                given.steps,
                given.kills - len(done),
                draw,
                given.longest,
            )
            alone(context, root / f"alone-{seed}", seed, given.steps)
            results.append(
                {
                    "seed": seed,
                    "kills": len(more),
                    **compared(root / f"killed-{seed}", root / f"alone-{seed}"),
                }
            )
            say(json.dumps(results[-1]))
            done, seed = done + more, seed + 1
        import grre_jax

        found = {
            "what": (
                "SIGKILL of a learner and two explorers at random moments, against the same runs"
                " left alone in one process"
            ),
            "version": grre_jax.__version__,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "kills": len(done),
            "seconds": round(time.monotonic() - began),
            "good": all(map(good, results)),
            **summary(done),
            "runs": results,
        }
        if given.output:
            Path(given.output).write_text(json.dumps(found, indent=1) + "\n")
        say(
            f"{len(done)} kills in {len(results)} runs, {found['seconds']} s:"
            f" {'nothing differs' if found['good'] else 'DIFFERENCES'}"
        )
    return 0 if found["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
