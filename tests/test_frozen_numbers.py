"""Losses, entropies, rewards and tokens of small runs, bit for bit as they were when they were written down.

One process makes all runs, compiled for AVX2, so that machines with other vector units round alike as
far as compiled code goes:

    python -m tests.test_frozen_numbers numbers.json RUN ...   # make runs, write their numbers
    python -m tests.test_frozen_numbers --write                # replace frozen_numbers.json

Another version of jax or another processor may round otherwise, and a token that is drawn otherwise
changes all that follows: there the first steps alone are compared, to 1e-4.
"""

import dataclasses
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from . import byte_tokenizers
from .conftest import QUICK
from .tasks.datasets import published_samples

FROZEN = Path(__file__).with_name("frozen_numbers.json")
ROOT = Path(__file__).parents[1]
FLAGS = f"--xla_cpu_max_isa=AVX2 {QUICK}"
PAPER = ("gsm8k_qwen2_5_1_5b", "guru_math_qwen2_5_7b", "math_llama3_1_8b", "toolace_llama3_2_3b")
FIRST = 5  # steps compared on another processor
RUNS = ("arithmetic", "agent_calculator", "jsonl", *PAPER)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}{% if"
    " add_generation_prompt %}<|im_start|>{% endif %}"
)
SAMPLES = {
    "gsm8k": published_samples.gsm8k,
    "guru_math": published_samples.guru,
    "math": published_samples.math_folders,
    "toolace": published_samples.toolace,
}
NEEDS_MATH_VERIFY = ("guru_math_qwen2_5_7b", "math_llama3_1_8b")


def shrunk(name, folder, steps):
    """A shipped configuration with a tiny model, four groups of four a step."""
    from grre_jax import config as c

    config = c.load_file(ROOT / "configs" / f"{name}.py")
    options = config.task.options | {"operands": 2}
    return dataclasses.replace(
        config,
        task=dataclasses.replace(config.task, options=options),
        run_dir=str(folder / name),
        model=c.ModelSource(
            hidden_size=16,
            intermediate_size=32,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            head_dim=8,
        ),
        regime=c.Regime(sync_interval=4),
        sampling=dataclasses.replace(config.sampling, group_size=4, prompts_per_call=4),
        training=c.TrainingConfig(steps=steps, prompts_per_step=4),
        optimizer=c.OptimizerConfig(learning_rate=1e-2),
        warm_start=c.WarmStartConfig(
            steps=40,
            demonstrations=256,
            batch_size=16,
            optimizer=c.OptimizerConfig(learning_rate=3e-2),
        ),
        evaluation=c.EvaluationConfig(questions=0),
        checkpoint=c.CheckpointConfig(every=100),
        logging=c.LoggingConfig(tensorboard=False),
    )


def arithmetic(folder):
    return shrunk("arithmetic", folder, steps=20)


def agent_calculator(folder):
    return shrunk("agent_calculator", folder, steps=10)


def jsonl(folder):
    """Learns from twelve groups of texts, their rewards written by hand."""
    from grre_jax import config as c, rollouts

    lines = []
    for n in range(12):
        prompt = f"{n % 10}+{n // 2 % 10}"
        digits = [digit % 10 for digit in range(n, n + 4 * 7, 7)]
        completions = [
            {"text": f"{prompt}={digit}$", "reward": float(digit == n % 3) - k / 8}
            for k, digit in enumerate(digits)
        ]
        lines.append({"prompt": f"{prompt}>", "completions": completions})
    (folder / "groups.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rollouts.import_rows("jsonl", folder / "groups.jsonl", folder / "imported")
    return dataclasses.replace(
        shrunk("arithmetic", folder, steps=10),
        run_dir=str(folder / "jsonl"),
        objective=c.ObjectiveConfig("asymre"),
        regime=c.Regime(),
        data=c.DataConfig(path=str(folder / "imported")),
    )


def tiny_model(folder, shape):
    """A folder with a random model of the family of a published one, and a byte-level tokenizer
    with a chat template.
    """
    from grre_jax import models

    tokenizer = byte_tokenizers.save(folder / "tokenizer", TEMPLATE)
    small = dict(
        hidden_size=16,
        intermediate_size=24,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        vocab_size=259,
        eos_ids=(258,),
    )
    model = models.init(dataclasses.replace(models.load_config(ROOT / shape), **small))
    return models.save(model, folder / "model", tokenizer_from=tokenizer)


def paper(name, folder):
    """The configuration's own task, objective and optimiser."""
    from grre_jax import config as c

    folder = folder / name
    folder.mkdir()
    config = c.load_file(ROOT / "configs" / "paper" / f"{name}.py")
    options = config.task.options | {"path": str(SAMPLES[config.task.name](folder / "data"))}
    if config.task.name in ("guru_math", "toolace"):
        options |= {"held_out": 2}
    return dataclasses.replace(
        config,
        run_dir=str(folder / "run"),
        model=c.ModelSource(path=str(tiny_model(folder, config.model.shape))),
        task=dataclasses.replace(config.task, options=options, verify_processes=0),
        sampling=dataclasses.replace(
            config.sampling,
            group_size=2,
            max_prompt_tokens=512,
            max_new_tokens=4,
            prompts_per_call=2,
        ),
        training=c.TrainingConfig(
            steps=2, prompts_per_step=2, pack_length=520, share_prompts=False
        ),
        evaluation=c.EvaluationConfig(questions=0),
        checkpoint=c.CheckpointConfig(every=100),
        logging=c.LoggingConfig(tensorboard=False),
        mesh=c.MeshConfig(),
    )


def processor():
    """The processor's model, by which compiled programs and libraries round."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def numbers(config):
    """Trains; returns the run's losses, entropies and rewards, and a digest of its tokens."""
    from grre_jax import rollouts
    from grre_jax.training import loop

    run = loop.train(config)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    stored = rollouts.read(config.data.path or run / "rollouts")
    groups = sorted(stored, key=lambda group: (int(group.policy_version[0]), group.position))
    digest = hashlib.sha256()
    for group in groups:
        for ids in (group.prompt_tokens, group.lengths, group.tokens):
            digest.update(np.asarray(ids, "<i4").tobytes())
    return {
        "losses": [float(row["loss"]).hex() for row in rows if "loss" in row],
        "entropies": [float(row["entropy"]).hex() for row in rows if "entropy" in row],
        "rewards": " ".join(f"{reward:g}" for group in groups for reward in group.rewards),
        "tokens": digest.hexdigest(),
    }


def make(output, names):
    """Makes runs and writes their numbers to a file."""
    import jax

    from grre_jax import reporting

    reporting.report = lambda *_, **__: None
    found = {"jax": jax.__version__, "processor": processor(), "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if name in NEEDS_MATH_VERIFY and not importlib.util.find_spec("math_verify"):
                continue
            place = Path(folder)
            config = paper(name, place) if name in PAPER else globals()[name](place)
            found["runs"][name] = numbers(config)
    output.write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """The numbers of the runs whose tests were selected."""
    output = tmp_path_factory.mktemp("frozen") / "numbers.json"
    tests = [item for item in request.session.items if item.path == request.path]
    run_in_process(output, [test.callspec.params["name"] for test in tests])
    return json.loads(output.read_text())


def run_in_process(output, names):
    settings = {
        "XLA_FLAGS": FLAGS,
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    subprocess.run(
        [sys.executable, "-m", "tests.test_frozen_numbers", str(output), *names],
        cwd=ROOT,
        env=os.environ | settings,
        check=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_numbers_of_training_are_what_they_were(name, runs):
    compare(name, runs)


def compare(name, made):
    frozen = json.loads(FROZEN.read_text())
    if name in NEEDS_MATH_VERIFY:
        pytest.importorskip("math_verify")
    expected = frozen["runs"][name]
    found = made["runs"][name]
    if (made["jax"], made["processor"]) == (frozen["jax"], frozen["processor"]):
        assert found == expected
        return
    for key in ("losses", "entropies"):
        first, wanted = (
            [float.fromhex(value) for value in values[:FIRST]]
            for values in (found[key], expected[key])
        )
        np.testing.assert_allclose(first, wanted, rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        run_in_process(FROZEN, RUNS)
    else:
        make(Path(sys.argv[1]), sys.argv[2:])
