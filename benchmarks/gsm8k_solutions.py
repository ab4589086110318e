"""Other people's data the whole way: GSM8K's 1,319 x 4 model solutions imported, judged and
scored again, exported to Parquet and read back.

    python benchmarks/gsm8k_solutions.py example_model_solutions.jsonl --model models/smollm2-135m
    --work work/gsm8k \\
        --output benchmarks/results/gsm8k_solutions.json

The file is https://github.com/openai/grade-school-math,
grade_school_math/data/example_model_solutions.jsonl; scripts/smollm2_from_wheel.py writes the model. The
rewards of the import are the authors' own judgements of correctness; the project's verifier judges
the texts again, in processes of their own, and every difference is listed. Log-probs are of the
model at temperature 1, the prompt in its chat template. Scoring that was interrupted goes on in the
same --work.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np
import report

from grre_jax import rollouts, tasks
from grre_jax.console import make_console
from grre_jax.rollouts.tools.exchange.exporters import export
from grre_jax.rollouts.tools.rescore import Scorer, rescore
from grre_jax.rollouts.tools.reverify import reverify
from grre_jax.tasks.pool import TaskSpec, make_judge
from grre_jax.tasks.provenance import reward_name
from grre_jax.training.policies import find_scorer


def walk(solutions: Path, work: Path, scorer: Scorer) -> dict[str, Any]:
    """Import, reverify, rescore, export, import, in the folder `work`; what each found."""
    work.mkdir(parents=True, exist_ok=True)
    for left in ("reverified", "back"):
        shutil.rmtree(work / left, ignore_errors=True)
    (work / "rescored.parquet").unlink(missing_ok=True)
    if not (work / "imported").exists():
        rollouts.import_gsm8k_solutions(solutions, work / "imported")
    imported = rollouts.read(work / "imported")
    found = {
        "groups": len(imported),
        "completions": sum(entry.completions for entry in imported.datasets),
        "verifier": _verified(work),
    }
    rescore(work / "imported", work / "rescored", scorer)
    found["scored"] = _scores(rollouts.read(work / "rescored"))
    export(work / "rescored", work / "rescored.parquet")
    rollouts.import_rows("parquet", work / "rescored.parquet", work / "back")
    back, rescored = rollouts.read(work / "back"), rollouts.read(work / "rescored")
    same = sum(a == b for a, b in zip(back, rescored, strict=True))
    return found | {
        "parquet": {
            "bytes": (work / "rescored.parquet").stat().st_size,
            "groups": len(back),
            "identical": same,
        }
    }


def _verified(work: Path) -> dict[str, Any]:
    """The project's verifier beside the authors' judgements, which are the rewards of the
    import.
    """
    task, listed, started = tasks.build("gsm8k"), io.StringIO(), time.monotonic()
    judge = make_judge(task, TaskSpec("gsm8k"), processes=2)
    changes = reverify(
        work / "imported",
        work / "reverified",
        judge,
        {"task": "gsm8k", "reward": reward_name(task)},
        listed=listed,
    )
    judge.close()
    rewards = np.concatenate([group.rewards for group in rollouts.read(work / "reverified")])
    return {
        "completions": changes.completions,
        "correct": int(rewards.sum()),
        "agreeing": changes.completions - changes.counts.total(),
        "failures": dict(changes.failures),
        "differences": [json.loads(line) for line in listed.getvalue().splitlines()],
        "seconds": time.monotonic() - started,
    }


def _scores(folder: rollouts.RolloutReader) -> dict[str, Any]:
    """Tokens, and the mean log-prob a token of each source's correct and incorrect solutions."""
    sums: dict[str, list[float]] = {}
    tokens = 0
    for group in folder:
        tokens += len(group.tokens)
        for k, (start, stop) in enumerate(zip(group.offsets, group.offsets[1:], strict=False)):
            name = f"{group.sources[k]}, {'correct' if group.rewards[k] else 'incorrect'}"
            sums.setdefault(name, []).append(
                float(group.behavior_logprobs[start:stop].mean(dtype=np.float64))
            )
    step = folder.datasets[0].metadata["history"][-1]
    policy = {
        name: step[name]
        for name in (
            "fingerprint",
            "tokenizer",
            "chat_template",
            "dtype",
            "parameters",
            "temperature",
        )
    }
    return {
        "tokens": tokens,
        "policy": policy,
        "mean_logprob": {name: float(np.mean(sums[name])) for name in sorted(sums)},
    }


def main() -> int:
    """Walks the road, prints and writes what it found; 1 if the verifier disagrees anywhere or
    what comes back is not what went out.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "solutions", type=Path, metavar="FILE", help="example_model_solutions.jsonl"
    )
    parser.add_argument(
        "--model", required=True, help="what scores: a model, or a run's checkpoint"
    )
    parser.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="where the folders go"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the result as JSON here")
    options = parser.parse_args()
    console = make_console()
    found = walk(options.solutions, options.work, find_scorer(options.model))
    report.write(
        options.output,
        {
            "benchmark": "gsm8k_solutions",
            "machine": machine.describe(),
            "model": Path(options.model).name,
            **found,
        },
    )
    verifier, parquet = found["verifier"], found["parquet"]
    console.print(
        f"verifier agrees on {verifier['agreeing']:,} of {verifier['completions']:,} solutions,"
        f" {verifier['correct']:,} of them correct"
    )
    console.print(
        f"scored {found['scored']['tokens']:,} tokens: "
        + ", ".join(f"{k} {v:.3f}" for k, v in found["scored"]["mean_logprob"].items())
    )
    console.print(
        f"{parquet['identical']:,} of {parquet['groups']:,} groups came back from Parquet as they"
        " were"
    )
    return int(
        verifier["agreeing"] != verifier["completions"]
        or not parquet["identical"] == parquet["groups"] == found["groups"]
    )


if __name__ == "__main__":
    sys.exit(main())
