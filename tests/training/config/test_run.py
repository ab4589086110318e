"""Fields from a file and from the command line: every kind is converted, and what is wrong is
named.
"""

import json
import sys
from pathlib import Path

import pytest

from grre_jax import config as configs
from grre_jax.config import Config, ObjectiveConfig, TaskConfig
from grre_jax.errors import UsageError
from grre_jax.training.build import build_objective
from grre_jax.training.config import overrides
from grre_jax.training.run_folder import changed_fields

DEFAULT = Config(name="default")
SHIPPED = sorted((Path(__file__).parents[3] / "configs").glob("*.py"))


def value_of(config, dotted):
    for name in dotted.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


@pytest.mark.parametrize(
    "words, field, expected",
    [
        ("--training.steps 7", "training.steps", 7),
        ("--sampling.top-p 0.5", "sampling.top_p", 0.5),
        ("--training.share_prompts NO", "training.share_prompts", False),
        ("--model.path=", "model.path", ""),
        ("--model.lora-targets v_proj, q_proj", "model.lora_targets", ("q_proj", "v_proj")),
        ("--model.system_prompt Be brief = good", "model.system_prompt", "Be brief = good"),
        ("--model.system_prompt none", "model.system_prompt", None),
        ("--warm-start.optimizer.warmup-steps 3", "warm_start.optimizer.warmup_steps", 3),
        ("--objective.options.epsilon-low=0.6", "objective.options.epsilon_low", 0.6),
        ("--task.options.annotations true", "task.options.annotations", True),
        (
            "--model.template-arguments.enable_thinking false",
            "model.template_arguments",
            {"enable_thinking": False},
        ),
        ("--task.reward a.py:f, b.py:g=0.5", "task.reward", ("a.py:f", "b.py:g=0.5")),
        ("--seed=1 --seed=2", "seed", 2),
    ],
)
def test_override_converts(words, field, expected):
    before = DEFAULT.to_json()
    value = value_of(overrides.override(DEFAULT, words.split(" ", 1)), field)
    assert value == expected and type(value) is type(expected)
    assert DEFAULT.to_json() == before


def test_options_belong_to_their_algorithm_or_task():
    """Beside new ones they are kept; another algorithm or task takes none of them."""
    config = overrides.override(
        DEFAULT, ["--objective.name=grpo", "--objective.options.epsilon_low=0.2", "--seed=0"]
    )
    changed = overrides.override(config, ["--objective.options.tau=0.5", "--task.name=gsm8k"])
    assert changed.objective.options == {"epsilon_low": 0.2, "tau": 0.5}
    assert changed.task == TaskConfig("gsm8k", {})
    words = ["--objective.options.tau=0.5", "--objective.name=red_weight"]
    assert overrides.override(config, words).objective.options == {"tau": 0.5}
    assert overrides.override(config, ["--objective.name", "grpo"]) == config


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


@pytest.mark.parametrize(
    "values",
    [
        {"name": "x", "training": {"stepz": 3}},
        {"name": "x", "training": {"steps": -1}},
        {"training": {}},
        {"name": "x", "sampling": {"weight_dtype": "int8"}},  # a field that no longer exists
        {"name": "x", "model": {"template_date": "2031-01-31"}},
        [],
    ],
)
def test_from_dict_refuses_what_is_no_configuration(values):
    with pytest.raises(UsageError):
        configs.from_dict(values)


def test_a_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "arithmetic.py").write_text("")
    with pytest.raises(UsageError, match=r"arithmetic\.py"):
        configs.load_file(tmp_path / "aritmetic.py")


def test_run_folder():
    assert Config(name="a").folder == Path("runs/a")
    assert Config(name="a", run_dir="b/c").folder == Path("b/c")
    stored = [Config("a", run_dir=f"s3://{name}") for name in ("b/run/", "b/run", "c/run")]
    folders = [config.folder for config in stored]
    assert stored[0].location == "s3://b/run/" and folders[0].is_absolute()
    assert folders[0] == folders[1] != folders[2]


WORDS = """
--model.lora_targets v_proj --regime.staleness 3 --data.mix folder=0.25:expert
--task.options.operands 3 --objective.stored reference --regime.replay_ratio 0.5
--model.template_arguments.thinking false --sampling.top_p 0.5 --seed 3
--task.reward a.py:f,b.py:g=0.5
""".split()


@pytest.mark.parametrize("path", [None, *SHIPPED], ids=str)
def test_configurations_survive_json(path):
    config = configs.load_file(path) if path else overrides.override(DEFAULT, WORDS)
    stored = json.loads(config.to_json())
    assert configs.from_dict(stored) == config
    if path:
        assert config.name == path.stem and config.folder == Path("runs") / path.stem
    else:
        default = json.loads(DEFAULT.to_json())
        assert len(configs.differences(default, stored)) == len(WORDS) // 2
    stored["evaluation"]["ranking_questions"] = "0:4"  # fields that no longer exist
    stored["sampling"]["weight_dtype"] = ""
    stored["model"]["template_date"] = ""
    assert configs.from_dict(stored) == config


@pytest.mark.parametrize(("old", "new"), [("zero", "mean"), ("reward", "none")])
def test_a_stored_option_of_another_name_is_read_and_a_given_one_is_refused(old, new):
    def config(**options):
        return Config("x", objective=ObjectiveConfig("grpo", options))

    stored = json.loads(config(single=old).to_json())
    read = configs.from_dict(stored)
    assert read == config(singleton_baseline=new)
    assert stored["objective"]["options"] == {"single": old}  # the caller's is left alone
    assert changed_fields(read, config()) == ["objective.options.singleton_baseline"]
    for options in ({"single": new}, {"single": old}, {"singleton_baseline": old}):
        with pytest.raises(UsageError, match=next(iter(options))):
            build_objective(config(**options))
