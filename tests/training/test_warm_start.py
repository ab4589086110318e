"""The warm start imitates demonstrations that lie in shards of their own, far from the run's
questions.
"""

import dataclasses
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding
from grre_jax.tasks import Question
from grre_jax.training import build
from grre_jax.training.config.run import override
from grre_jax.training.stopping import StopRequest
from grre_jax.training.warm_start import DEMONSTRATIONS_FROM, check_demonstrations, warm_start

from ..run_processes import first_state, quiet


def start(parts, folder):
    state = first_state(parts)
    log = Mock()
    params = warm_start(parts, state.params, folder, log, StopRequest(), quiet())
    return params, [call.args for call in log.write.call_args_list]


@pytest.fixture(scope="module")
def parts(make_config, tmp_path_factory):
    encoding.import_libraries()  # as `loop.train` does, before there are threads
    words = "--warm-start.steps 12 --warm-start.demonstrations 40 --task.options.corruption 0.0"
    return build.build(make_config(tmp_path_factory.mktemp("warm") / "run", words))


def test_demonstrations_are_sealed_once_and_imitated(parts, tmp_path):
    params, rows = start(parts, tmp_path)
    reader = rollouts.read(tmp_path / "warm_start")
    assert sorted(reader.index) == list(range(DEMONSTRATIONS_FROM, DEMONSTRATIONS_FROM + 40))
    for group in list(reader)[:5]:
        question = parts.task.question(group.position)
        assert group.texts == [question.demonstration] and group.prompt == question.prompt
        assert parts.tokenizer.decode(group.tokens) == question.demonstration
        assert group.sources == ["demonstration"] and group.rewards.tolist() == [1.0]
    assert [row[:2] for row in rows] == [("warm_start", step) for step in range(1, 13)]
    losses = [row["loss"] for _, _, row in rows]
    assert np.mean(losses[-3:]) < 0.8 * losses[0]
    # Interrupted and started anew: the same shards, the same policy.
    again, _ = start(parts, tmp_path)
    assert len(rollouts.read(tmp_path / "warm_start").datasets) == 1
    jax.tree.map(np.testing.assert_array_equal, params, again)


def test_overlong_demonstrations_are_left_out(parts, tmp_path):
    def question(position):
        n = position - DEMONSTRATIONS_FROM
        found = parts.task.question(position)
        if n in (0, 7):
            return dataclasses.replace(found, prompt="1+" + found.prompt)
        shown = {3: "123", 20: "12"}.get(n, found.demonstration)  # at most 3 tokens with the end
        return dataclasses.replace(found, demonstration=shown)

    task = SimpleNamespace(name="mixed", tokenizer=parts.tokenizer, question=question)
    mixed = dataclasses.replace(parts, task=task)
    check_demonstrations(mixed)
    start(mixed, tmp_path)
    kept = [g.position - DEMONSTRATIONS_FROM for g in rollouts.read(tmp_path / "warm_start")]
    assert kept == [n for n in range(40) if n not in (0, 3, 7)]
    few = override(parts.config, ["--sampling.max_new_tokens=1"])
    with pytest.raises(DataError, match=r"sampling\.max_new_tokens = 1"):
        check_demonstrations(dataclasses.replace(mixed, config=few))
    task.question = lambda position: Question("q", "1+1>", "2")
    with pytest.raises(UsageError, match=r"warm_start\.steps"):
        check_demonstrations(mixed)
