"""Completions without a verdict: what a step trains on, and a verifier that always fails."""

import dataclasses

import jax
import numpy as np
import pytest

from grre_jax import objectives
from grre_jax.errors import DataError
from grre_jax.parallel import mesh as meshes
from grre_jax.training.data.batches import place
from grre_jax.training.data.pack import BatchShape
from grre_jax.training.loop import train
from grre_jax.training.metrics import FailureBound

from ...groups import packed_group, played_group
from ...run_processes import log

pytestmark = pytest.mark.usefixtures("no_reports")


def failed(group, *lost):
    """The group with no verdict on some completions."""
    gone = np.isin(np.arange(group.num_completions), lost)
    texts = {"verify_failures": "timeout", "verify_reasons": "no answer"}
    extra = {name: np.where(gone, text, "").tolist() for name, text in texts.items()}
    return dataclasses.replace(group, rewards=np.where(gone, np.nan, group.rewards), extra=extra)


def test_a_trajectory_without_a_verdict_is_left_out_with_its_turns():
    group = played_group(0)
    names = ("tokens", "mask", "lengths", "turn_counts", "turn_tokens", "turn_texts")
    rows = {name: np.tile(getattr(group, name), 2) for name in (*names, "turn_rewards")}
    rows |= {name: getattr(group, name) * 2 for name in ("texts", "finish_reasons")}
    kept = failed(played_group(0, rewards=[1, 0, 1, 0], **rows), 1).with_verdicts()
    assert kept.num_completions == 3 and kept.texts == [group.texts[0], *group.texts]
    assert kept.turns(1) == group.turns(0) and kept.judged.all()
    assert kept.turns(1, "turn_texts") == group.turns(0, "turn_texts")


def test_a_step_with_a_crash_is_the_step_without_that_completion():
    """And without a group that is left with one verdict."""
    whole = packed_group(1)
    kept = packed_group(
        1,
        prompt_tokens=whole.prompt_tokens,
        lengths=whole.lengths[:2].tolist(),
        tokens=whole.tokens[:6],
        behavior_logprobs=whole.behavior_logprobs[:6],
        rewards=whole.rewards[:2],
    )
    other = packed_group(2)
    alone = failed(packed_group(3, lengths=(3, 2)), 1)
    shape = BatchShape.of_run(3, 3, 3, 4, 0, 0)
    mesh = meshes.make_mesh(meshes.MeshConfig())
    found, expected = (
        place(groups, shape, objectives.algorithm("grpo"), mesh)
        for groups in ([failed(whole, 2), other, alone], [kept, other])
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_bound_counts_steps_to_come_as_good_ones():
    good = packed_group(1)
    bad = failed(good, 0, 1, 2)
    for steps, groups in ((100, [bad] * 10), (4, [bad, good, good, good, bad, bad])):
        bound = FailureBound(0.5, steps)
        for group in groups:
            bound.check([group])
        with pytest.raises(DataError, match="timeout: no answer"):
            bound.check([bad])


def test_a_run_whose_verifier_always_crashes_stops_with_the_first_reason(make_config, tmp_path):
    """And goes on once the verifier works."""
    verifier = tmp_path / "always.py"
    verifier.write_text(
        "from grre_jax.tasks.datasets.arithmetic import Arithmetic\n"
        "class Always(Arithmetic):\n"
        "    def verify(self, question, completion): raise ZeroDivisionError('sandbox lost')\n"
        "def build(seed=0): return Always(seed=seed, operands=2)\n"
    )
    words = f"--task.name {verifier}:build --task.verify_processes 0"
    words += " --evaluation.questions 0 --warm-start.steps 0"
    config = make_config(tmp_path / "runs", words)
    with pytest.raises(DataError, match="error: ZeroDivisionError: sandbox lost"):
        train(config)
    rows = [row for row in log(config.folder) if row["kind"] == "train"]
    assert 0 < len(rows) < 8
    assert all((row["verify_failures"], row["grad_norm"]) == (16, 0) for row in rows)
    assert not any({"reward", "response_length"} & row.keys() for row in rows)
    working = "return super().verify(question, completion) or"
    verifier.write_text(verifier.read_text().replace("raise", working))
    # Beyond what was sampled already.
    train(make_config(tmp_path / "runs", f"{words} --training.steps 12"), resume=True)
    last = log(config.folder)[-1]
    assert last["step"] == 12 and not last.get("verify_failures")
