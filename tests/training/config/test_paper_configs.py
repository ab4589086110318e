"""The paper's four settings: each trains for two real steps with a tiny model of the same
family, through its own data path on data in the published format.
"""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from grre_jax import config as configs
from grre_jax import models, rollouts, tasks
from grre_jax.models.checkpoints import export
from grre_jax.models.published import published
from grre_jax.training import loop
from grre_jax.training.data.regime import Regime

from ...tasks.datasets import published_samples

pytestmark = pytest.mark.usefixtures("no_reports")

FOLDER = Path(__file__).parents[3] / "configs" / "paper"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}{% if"
    " add_generation_prompt %}<|im_start|>{% endif %}"
)
NAMES = ["gsm8k_qwen2_5_1_5b", "guru_math_qwen2_5_7b", "math_llama3_1_8b", "toolace_llama3_2_3b"]
SAMPLES = {
    "gsm8k": published_samples.gsm8k,
    "guru_math": published_samples.guru,
    "math": published_samples.math_folders,
    "toolace": published_samples.toolace,
}


def tiny_model(folder, shape):
    """A folder with a random model of the family of a published one, and a byte-level tokenizer
    with a chat template.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as algorithms

    transformers = pytest.importorskip("transformers")
    backend = Tokenizer(
        algorithms.BPE(
            vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
            merges=[],
        )
    )
    backend.pre_tokenizer, backend.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    backend.add_special_tokens(
        [
            AddedToken(token, special=True)
            for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        ]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(str(folder / "tokenizer"))
    published_config = published(shape)
    small = dict(
        hidden_size=16,
        intermediate_size=24,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        vocab_size=len(tokenizer),
    )
    model = models.init(
        dataclasses.replace(published_config, **small, eos_ids=(tokenizer.eos_token_id,))
    )
    return export.save(model, folder / "model", tokenizer_from=folder / "tokenizer")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_config_says(name):
    config = configs.load_file(FOLDER / f"{name}.py")
    assert config.name == name and config.regime == Regime() and config.sampling.group_size == 8
    assert (
        config.sampling.temperature,
        config.sampling.max_new_tokens,
        config.training.prompts_per_step,
    ) == (1.0, 1024, 96)
    assert (config.optimizer.name, config.optimizer.learning_rate, config.optimizer.clip_norm) == (
        "adamw",
        1e-6,
        1.0,
    )
    assert config.optimizer.weight_decay == 0
    for regime in ({"sync_interval": 20}, {"sync_offset": 10}, {"offline": True}):
        assert not dataclasses.replace(config, regime=Regime(**regime)).regime.on_policy
    text = (FOLDER / f"{name}.py").read_text()
    for line in (
        "--regime.sync-interval 20",
        "--regime.sync-offset 10",
        "--regime.offline true",
        "grre compile",
        "GiB a chip",
    ):
        assert line in text
    published(config.model.shape)


def two_steps(name, folder, prompt, questions):
    """The config's own task options, objective and optimiser; model, data and sizes are small."""
    config = configs.load_file(FOLDER / f"{name}.py")
    pytest.importorskip("math_verify") if config.task.name in ("math", "guru_math") else None
    options = config.task.options | {"path": str(SAMPLES[config.task.name](folder / "data"))}
    if config.task.name in ("guru_math", "toolace"):
        options |= {"held_out": 2}
    small = dataclasses.replace(
        config,
        run_dir=str(folder / "run"),
        model=configs.ModelSource(path=str(tiny_model(folder, config.model.shape))),
        task=dataclasses.replace(config.task, options=options, verify_processes=0),
        sampling=dataclasses.replace(
            config.sampling,
            group_size=2,
            max_prompt_tokens=prompt,
            max_new_tokens=4,
            prompts_per_call=2,
        ),
        training=configs.TrainingConfig(
            steps=2, prompts_per_step=2, pack_length=prompt + 8, share_prompts=False
        ),
        evaluation=dataclasses.replace(config.evaluation, questions=questions),
        checkpoint=configs.CheckpointConfig(every=2),
        logging=configs.LoggingConfig(tensorboard=False),
        mesh=configs.MeshConfig(),
    )
    run = loop.train(small)
    stored = rollouts.read(run / "rollouts")
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return tasks.build(config.task.name, **options), list(stored), metrics


def check(name, folder, prompt, questions):
    task, groups, metrics = two_steps(name, folder, prompt, questions)
    assert len(groups) == 4 and {group.task for group in groups} == {task.name}
    asked = {task.question(place).question_id for place in range(4)}
    assert {group.question_id for group in groups} <= asked
    assert {"correct"} <= set(groups[0].components) and all(
        group.rewards.shape == (2,) for group in groups
    )
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert len(losses) == 2 and all(map(math.isfinite, losses))
    return groups


def test_gsm8k_takes_two_steps(tmp_path):
    groups = check("gsm8k_qwen2_5_1_5b", tmp_path, prompt=152, questions=0)
    assert groups[0].prompt.endswith("give the final number after ####.")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[1:])
def test_the_others_take_two_steps(name, tmp_path):
    check(name, tmp_path, prompt=768, questions=2)
