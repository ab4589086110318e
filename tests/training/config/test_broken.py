"""Broken configurations end with the name of the field and its value, in files as on the command
line.
"""

import pytest

from grre_jax.cli import main
from grre_jax.training.config.run import Config

BIG = "99999999999999999999"

# What the file's config() returns, the field and the value that the message names.
FILES = """
c.Config(3) | name | 3
c.Config("x", run_dir=["a"]) | run_dir | ['a']
c.Config("x", seed="0") | seed | '0'
c.Config("x", seed=-1) | seed | -1
c.Config("x", task="arithmetic") | task | 'arithmetic'
c.Config("x", optimizer={"learning_rate": 1e-3}) | optimizer | {'learning_rate': 0.001}
c.Config("x", training=c.OptimizerConfig()) | training | OptimizerConfig(
c.Config("x", regime="offline") | regime | 'offline'
c.Config("x", compiled=True) | compiled | True
c.Config("x", steps=3) | steps | line 7: TypeError
c.Config("x", data=c.DataConfig(mix="old=0.01")) | data.mix | 'old=0.01'
c.Config("x", data=c.DataConfig(max_staleness=3), regime=c.Regime(5)) | data.max_staleness | 3
c.TrainingConfig(steps="10") | training.steps | '10'
c.TrainingConfig(steps=-2) | training.steps | -2
c.TrainingConfig(steps=BIG) | training.steps | BIG
c.TrainingConfig(stepz=3) | training.stepz | line 7: TypeError
c.Regime(offline="false") | regime.offline | 'false'
c.Regime(sync_interval=2, offline=True) | regime.offline | True
c.Regime(sync_offset=2, staleness=3) | regime.staleness | 3
c.Regime(replay_window=2) | regime.replay_window | 2
c.Regime(replay_ratio=0.99) | regime.replay_ratio | 0.99
c.LoggingConfig(tensorboard="no") | logging.tensorboard | 'no'
c.SamplingConfig(temperature=float("nan")) | sampling.temperature | nan
c.SamplingConfig(stop=[3]) | sampling.stop[0] | 3
c.SamplingConfig(stop=("",)) | sampling.stop | ('',)
c.SamplingConfig(cache_dtype="float23") | sampling.cache_dtype | did you mean 'float32'
c.OptimizerConfig(learning_rate=10**400) | optimizer.learning_rate | 1000000
c.OptimizerConfig(learning_rate=1j) | optimizer.learning_rate | 1j
c.OptimizerConfig(name="adamW") | optimizer.name | did you mean 'adamw'
c.OptimizerConfig(decay="linear") | optimizer.decay_steps | 0
c.ObjectiveConfig("grpo", ["epsilon_low", 0.2]) | objective.options | ['epsilon_low', 0.2]
c.ObjectiveConfig("grpo", {"mask": print}) | objective.options.mask | print
c.ObjectiveConfig("grpo", {"epsilon_lo": 1}) | epsilon_lo | epsilon_low
c.ObjectiveConfig("grpoo") | objective | grpoo
c.ObjectiveConfig(stored=("teacher",)) | objective.stored[0] | 'teacher'
c.TaskConfig("arithmetic", {"operandz": 2}) | operandz | operands
c.TaskConfig("arithmetics") | task | 'arithmetics'
c.TaskConfig("broken_task.py:build") | broken_task.py:build | broken_task.py, line 1: ZeroDivisionError
c.TaskConfig("no_task.py:build") | no_task.py | No such file
c.TaskConfig(reward="score.py:f") | task.reward | 'score.py:f'
c.DataConfig(mix="a=2") | data.mix | 'a=2'
c.DataConfig(mix="a") | data.mix | 'a'
c.DataConfig(mix="a=0.5:teacher") | data.mix | 'a=0.5:teacher'
c.DataConfig(mix="a=0.1,a=0.2:expert") | data.mix | 'a=0.1,a=0.2:expert'
c.DataConfig(mix="a=0.5,b=0.6") | data.mix | 'a=0.5,b=0.6'
c.DataConfig(mix="a=0.1,b=0.2,c=0.7", path="p") | data.path | 'p'
c.ModelSource(lora_targets=("q_proj", "gate_porj")) | model.lora_targets[1] | did you mean 'gate_proj'
c.ModelSource(lora_targets=()) | model.lora_targets | ()
c.ModelSource(head_dim=7) | model.head_dim | 7
c.ModelSource(num_heads=3, num_kv_heads=2) | model.num_kv_heads | 2
c.EvaluationConfig(questions=999999999) | evaluation.questions | 999999999
c.WarmStartConfig(steps=1, demonstrations=2, batch_size=3) | warm_start.batch_size | 3
c.Config("x", regime=c.Regime(newest=True)) | regime.newest | True
c.Config("x", regime=c.Regime(newest=True), cluster=c.ClusterConfig("auto"), data=c.DataConfig(dynamic_sampling=1)) | regime.newest | True
c.ClusterConfig(explorers=c.ExplorersConfig(least=3, most=2)) | explorers.most | 2
c.ClusterConfig(explorers=c.ExplorersConfig(resources={"TPU": "4"})) | explorers.resources.TPU | '4'
1 / 0 | line 7 | ZeroDivisionError
c.Nothing() | line 7 | Nothing
{} | config() | dict
"""

# Words of the command line, the field and the value that the message names.
WORDS = """
--training.steps ten | training.steps | 'ten'
--training.steps 1.5 | training.steps | '1.5'
--training.stepz 7 | training.stepz | did you mean 'training.steps'
--training 7 | training | unknown
--training.steps | training.steps | VALUE
--seed.more 7 | seed.more | unknown
--lr 3 | lr | unknown
--regime.offline maybe | regime.offline | 'maybe'
--optimizer.weight_decay inf | optimizer.weight_decay | inf
--optimizer.learning_rate fast | optimizer.learning_rate | 'fast'
--warm_start.optimizer.b2=2 | warm_start.optimizer.b2 | 2
--model.lora_targets (3,) | model.lora_targets[0] | 3
--objective.options {"a":1 | objective.options | '{"a":1'
--objective.options.a.b 1 | objective.options.a.b | unknown
steps=3 | steps=3 | --name VALUE
"""


def rows(table):
    lines = [line for line in table.replace("BIG", BIG).splitlines() if line]
    return [tuple(line.split(" | ")) for line in lines]


@pytest.fixture
def fails(tmp_path, monkeypatch, capsys):
    """`fails(returned, *words)`: the message of `grre train` of a file that returns this."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_task.py").write_text("1 / 0")

    def run(returned, *words):
        prefixes = {"c.Config(", "1 /", "c.Nothing", "{}"}
        if not any(returned.startswith(prefix) for prefix in prefixes):
            record = returned[2:].partition("(")[0]
            returned = f"c.Config('x', {SECTIONS[record]}={returned})"
        lines = ["from grre_jax import config as c", "", "", "def config():", "    # the return:"]
        (tmp_path / "broken.py").write_text("\n".join([*lines, "", f"    return {returned}", ""]))
        assert main(["train", "broken.py", *words]) == 2
        message = capsys.readouterr().err
        assert message.startswith("grre: ") and message.count("\n") == 1 and len(message) < 1500
        assert not (tmp_path / "runs").exists()
        return message

    return run


SECTIONS = {type(value).__name__: name for name, value in vars(Config("x")).items()}


@pytest.mark.parametrize(("returned", "field", "value"), rows(FILES))
def test_a_file(fails, returned, field, value):
    message = fails(returned)
    assert field.rpartition(".")[2] in message and value in message


@pytest.mark.parametrize(("words", "field", "value"), rows(WORDS))
def test_the_command_line(fails, words, field, value):
    message = fails("c.Config('x')", *words.split())
    assert field in message and value in message
