"""Combinations that make no sense are said to, and the shipped configurations have none but
those that are meant.
"""

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.config import (
    Config,
    DataConfig,
    EvaluationConfig,
    MeshConfig,
    SamplerMeshConfig,
    SamplingConfig,
    TaskConfig,
    TrainingConfig,
)
from grre_jax.explain.run_warnings import run_warnings
from grre_jax.objectives import algorithm
from grre_jax.training.data.regime import Regime


def told(objective, first_stale=None, **fields):
    return " | ".join(run_warnings(Config("x", **fields), algorithm(objective), first_stale))


@pytest.mark.parametrize(
    "objective, first_stale, fields, sentence",
    [
        ("grpo", None, {}, "the clip ranges and weights of grpo are without effect"),
        (
            "reinforce",
            1,
            {"regime": Regime(sync_interval=4)},
            "reinforce neither clips nor regularizes, and is given stale data",
        ),
        (
            "grpo",
            1,
            {"regime": Regime(sync_interval=200)},
            "no version after 0 samples anything in 100 steps: the run is offline in effect",
        ),
        ("grpo", 1, {"regime": Regime(staleness=100)}, "the run is offline in effect"),
        (
            "grpo",
            1,
            {"regime": Regime(reuse=101)},
            "regime.reuse=101 is more than the run's 100 steps",
        ),
        (
            "grpo",
            1,
            {"regime": Regime(reuse=100, replay_ratio=0.5)},
            "regime.replay_ratio replays nothing",
        ),
        (
            "grpo",
            1,
            {"regime": Regime(replay_ratio=0.01)},
            "replay_ratio=0.01 of 16 groups rounds to none",
        ),
        (
            "grpo",
            None,
            {"regime": Regime(sync_interval=4), "data": DataConfig(path="p")},
            "regime (sync_interval 4, sync_offset 0) has no effect",
        ),
        (
            "grpo",
            None,
            {"mesh": MeshConfig(sampler=SamplerMeshConfig(2))},
            "mesh.sampler.data: expected 0, got 2: with sync_interval 1",
        ),
        (
            "grpo",
            None,
            {"data": DataConfig(path="nowhere")},
            "data.path names nowhere, which does not exist yet",
        ),
        (
            "grpo",
            None,
            {"data": DataConfig(mix="nowhere=0.5")},
            "data.mix names nowhere, which does not exist yet",
        ),
        (
            "grpo",
            None,
            {"data": DataConfig(prefer="reward")},
            "data.prefer is of stored groups, and there are none",
        ),
        (
            "grpo",
            None,
            {"data": DataConfig(path="p", dynamic_sampling=2)},
            "data.dynamic_sampling has no effect",
        ),
        (
            "grpo",
            None,
            {"data": DataConfig(questions="0:4")},
            "data.questions selects groups of data.path, which is empty",
        ),
        (
            "asymre",
            None,
            {"data": DataConfig(path="p")},
            "data.drop_zero_variance leaves out groups that asymre would still learn from",
        ),
        (
            "chord",
            None,
            {"data": DataConfig(mix="p=0.5")},
            "chord imitates completions that are marked as an expert's",
        ),
        (
            "grpo",
            None,
            {"data": DataConfig(mix="p=0.5:expert")},
            "grpo does not treat an expert's completions apart",
        ),
        (
            "grpo",
            None,
            {"sampling": SamplingConfig(group_size=1)},
            "groups of one, whose advantages are all 0",
        ),
        ("log_linear_proximal", None, {}, "interpolates by staleness, which is 0 throughout"),
        (
            "grpo",
            1,
            {"sampling": SamplingConfig(top_p=0.9)},
            "sampling is truncated and ratios are over the full vocabulary",
        ),
    ],
)
def test_a_combination_is_told(objective, first_stale, fields, sentence):
    assert sentence in told(objective, first_stale, **fields)


@pytest.mark.parametrize(
    "objective, first_stale, fields",
    [
        ("reinforce", None, {}),
        ("grpo", 1, {"regime": Regime(sync_interval=4)}),
        ("asymre", 1, {"regime": Regime(sync_offset=10)}),
        ("opmd", 1, {"regime": Regime(staleness=3)}),
        ("grpo", 1, {"regime": Regime(offline=True)}),
        ("grpo", 1, {"regime": Regime(reuse=4, replay_ratio=0.25)}),
        ("reinforce", None, {"training": TrainingConfig(steps=0)}),
        ("reinforce", None, {"training": TrainingConfig(steps=1)}),
    ],
)
def test_nothing_is_told_of_what_makes_sense(objective, first_stale, fields):
    assert told(objective, first_stale, **fields) == ""


@pytest.mark.parametrize("objective, words", [("grpo", "mean of -20"), ("reinforce", "")])
def test_stored_log_probs_that_cannot_be_are_told_where_the_objective_takes_them(
    tmp_path, objective, words
):
    own = -np.linspace(200, 203, 20)
    group = rollouts.Group(
        group_id="g",
        prompt="p",
        texts=["a"],
        rewards=[1],
        prompt_tokens=[1],
        lengths=[20],
        tokens=np.ones(20),
        behavior_logprobs=own,
    )
    rollouts.write(tmp_path / "r", [group], writer="w")
    found = told(objective, data=DataConfig(path=str(tmp_path / "r")))
    assert words in found and ("behavior_logprobs" in found) == bool(words)


def test_a_task_of_ones_own_that_trains_on_its_evaluation_is_told(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import random\n"
        "from grre_jax.tasks import Question\n"
        "class Mine:\n"
        "    name = 'mine'\n"
        "    def question(self, position):\n"
        "        number = random.Random(position).randrange(10**9)\n"
        "        return Question(f'mine/{number}', f'{number}?', '1')\n"
        # Of the same draws.
        "    def evaluation(self, count): return [self.question(-1 - n) for n in range(count)]\n"
        "    def verify(self, question, completion): ...\n"
        "def build(): return Mine()\n"
    )
    task = TaskConfig(f"{tmp_path / 'mine.py'}:build")
    sentence = told(
        "grpo",
        task=task,
        training=TrainingConfig(steps=20, prompts_per_step=10),
        evaluation=EvaluationConfig(questions=64),
    )
    assert "64 of the 64 evaluation questions are trained on (mine/" in sentence
    assert "trained on" not in told("grpo", task=TaskConfig("arithmetic"))
    assert "the task's questions cannot be looked at" in told(
        "grpo", task=TaskConfig("nowhere.py:build")
    )
