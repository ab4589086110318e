"""Fields from a file and from the command line: every kind is converted, and what is wrong is
named.
"""

import json
import sys
from pathlib import Path

import pytest

from grre_jax import config as configs
from grre_jax.config import Config, TaskConfig
from grre_jax.errors import UsageError
from grre_jax.training.config.run import override
from grre_jax.training.config.sections import MixEntry, parse_mix

DEFAULT = Config(name="default")
SHIPPED = sorted((Path(__file__).parents[3] / "configs").glob("*.py"))


def value_of(config, dotted):
    for name in dotted.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


@pytest.mark.parametrize(
    "words, field, expected",
    [
        ("--sampling.top-p 0.5", "sampling.top_p", 0.5),
        ("--training.share_prompts False", "training.share_prompts", False),
        ("--model.path=", "model.path", ""),
        ("--model.lora-targets v_proj, q_proj", "model.lora_targets", ("v_proj", "q_proj")),
        ("--model.system_prompt none", "model.system_prompt", None),
        ("--objective.options.epsilon-low=0.6", "objective.options.epsilon_low", 0.6),
        ("--model.template-arguments.a false", "model.template_arguments.a", False),
        ("--seed=1 --seed=2", "seed", 2),
    ],
)
def test_override_converts(words, field, expected):
    value = value_of(override(DEFAULT, words.split(" ", 1)), field)
    assert value == expected and type(value) is type(expected)


def test_options_belong_to_their_algorithm_or_task():
    """Beside new ones they are kept; another algorithm or task takes none of them."""
    config = override(
        DEFAULT, ["--objective.name=grpo", "--objective.options.epsilon_low=0.2", "--seed=0"]
    )
    changed = override(config, ["--objective.options.tau=0.5", "--task.name=gsm8k"])
    assert changed.objective.options == {"epsilon_low": 0.2, "tau": 0.5}
    assert changed.task == TaskConfig("gsm8k", {})
    words = ["--objective.options.tau=0.5", "--objective.name=red_weight"]
    assert override(config, words).objective.options == {"tau": 0.5}
    assert override(config, ["--objective.name", "grpo"]) == config


def test_a_configuration_imports_what_lies_beside_it(tmp_path, monkeypatch):
    (tmp_path / "shared_by_two_configs.py").write_text("STEPS = 7")
    text = (
        "from shared_by_two_configs import STEPS\n"
        "from grre_jax.config import Config, TrainingConfig\n"
        "def config():\n"
        "    return Config('x', training=TrainingConfig(steps=STEPS))\n"
    )
    (tmp_path / "own.py").write_text(text)
    before = list(sys.path)
    assert configs.load_file(tmp_path / "own.py").training.steps == 7
    assert sys.path == before


def test_from_dict_refuses_what_is_no_configuration():
    removed = {"name": "x", "sampling": {"weight_dtype": "int8"}}
    for values in (removed, {"name": "x", "training": {"steps": -1}}, {"training": {}}, []):
        with pytest.raises(UsageError):
            configs.from_dict(values)


def test_the_folder_of_a_run_in_a_store_is_its_own():
    folders = [Config("a", run_dir=f"s3://{name}").folder for name in ("b/run/", "b/run", "c/run")]
    assert folders[0].is_absolute() and folders[0] == folders[1] != folders[2]


def test_a_mix_is_read_from_text():
    assert parse_mix(" runs/a=b/rollouts=0.25 , gs://bucket/solutions=0.5:expert,") == (
        MixEntry("runs/a=b/rollouts", 0.25),
        MixEntry("gs://bucket/solutions", 0.5, expert=True),
    )


WORDS = """
--model.lora_targets v_proj --regime.staleness 3 --data.mix folder=0.25:expert
--task.options.operands 3 --objective.stored reference --regime.replay_ratio 0.5
--model.template_arguments.thinking false --sampling.top_p 0.5 --seed 3
--task.reward a.py:f,b.py:g=0.5
""".split()


@pytest.mark.parametrize("path", [None, *SHIPPED], ids=str)
def test_configurations_survive_json(path):
    config = configs.load_file(path) if path else override(DEFAULT, WORDS)
    stored = json.loads(config.to_json())
    assert configs.from_dict(stored) == config
    assert config.name == (path.stem if path else "default")
    stored["evaluation"]["ranking_questions"] = "0:4"  # fields that no longer exist
    stored["sampling"]["weight_dtype"] = ""
    stored["model"]["template_date"] = ""
    assert configs.from_dict(stored) == config
