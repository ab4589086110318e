"""A run whose completions are trajectories: sampled, stored, trained on and
resumed.
"""

import dataclasses
import shutil

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.cli.entry import main
from grre_jax.errors import UsageError
from grre_jax.tasks.environments import Step
from grre_jax.tasks.environments.environment import InProcessEnvironments
from grre_jax.tasks.task import load_function
from grre_jax.training import build, policies
from grre_jax.training.actors.explorer import make_explorer
from grre_jax.training.config.run import override
from grre_jax.training.loop import train

from ...conftest import CALCULATOR
from ...run_processes import bits, first_state, groups, log

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(scope="module")
def config(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trajectories")
    # With few environments at once, for one test: they are rows of what is compiled for all.
    (folder / "few.py").write_text(
        "from grre_jax.tasks.task import load_function\n"
        f"class Few(load_function({CALCULATOR!r})):\n    most_environments = 3\n"
    )
    words = f"--task.name {folder / 'few.py'}:Few --task.options.operands 2 --task.options.digits 1"
    words += " --task.options.flaw 0.5 --sampling.max_new_tokens 12 --sampling.max_turns 3"
    words += " --sampling.max_turn_tokens 5 --regime.sync_interval 2 --training.steps 4"
    words += " --evaluation.every 2 --evaluation.questions 4 --checkpoint.every 2"
    return make_config(folder / "run", words)


@pytest.fixture(scope="module")
def run(config):
    return train(config)


def test_groups_are_trajectories_with_the_log_probs_of_their_policy(run, monkeypatch):
    found = [g for g in rollouts.read(run / "rollouts") if g.policy_version.max() == 0]
    assert len(found) == 8 and all(g.environment == "calculator" for g in found)
    turns = np.concatenate([g.turn_counts for g in found])
    assert 1 <= turns.min() < turns.max() <= 3 and max(g.lengths.max() for g in found) <= 12
    assert {r for g in found for r in g.finish_reasons} <= {"done", "turns", "tokens"}
    monkeypatch.setattr(policies, "ROW_TOKENS", 64)  # quicker to compile
    scores = policies.find_scorer(f"{run}:0").score(found, 1.0)
    for group, score in zip(found, scores, strict=True):
        np.testing.assert_allclose(group.behavior_logprobs, score * group.mask, atol=1e-4)
    # The observations of demonstrations are masked too.
    warm = list(rollouts.read(run / "warm_start"))
    called = [g for g in warm if g.turn_counts[0] == 2]
    assert 0 < len(called) < len(warm)
    assert all(("=$" in g.texts[0]) == (not g.mask.all()) == (g in called) for g in warm)


def test_a_run_that_goes_on_has_the_same_trajectories(config, run, tmp_path):
    """From its checkpoint of step 2, without what was sampled after it."""
    again = shutil.copytree(run, tmp_path / "again")
    shutil.rmtree(again / "checkpoints" / "4")
    manifest = again / "rollouts" / "manifest.jsonl"
    sampled = rollouts.read(again / "rollouts").datasets
    assert [entry.policy_version for entry in sampled] == [0, 0, 2, 2]
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(lines[:2]))
    train(override(config, [f"--run-dir={again}"]), resume=True)
    assert groups(again) == groups(run)
    assert (log(again), bits(again)) == (log(run), bits(run))


class Counted(load_function(CALCULATOR)):
    """Counts the environments that are open at once; no trajectory ends before its limits."""

    most_environments = 3
    open_now = 0
    most_open = 0

    def environment(self):
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        environment = super().environment()
        environment.step = lambda action: Step("1")
        environment.close = self.closed
        return environment

    def closed(self):
        self.open_now -= 1


def test_no_more_environments_are_open_than_the_task_allows(config):
    parts = build.build(config)
    state = first_state(parts)
    counted = Counted(operands=2, digits=1)
    explorer = make_explorer(parts)
    limited = dataclasses.replace(explorer, task=counted, judge=InProcessEnvironments(counted))
    questions = [counted.question(position) for position in range(4)]
    found = limited.groups(state.params, questions, range(4), policy_version=0)
    assert counted.most_open == 3 and counted.open_now == 0
    assert {reason for group in found for reason in group.finish_reasons} <= {"turns", "tokens"}


def test_what_cannot_be_done_with_trajectories_is_named(config, run, capsys):
    other = override(config, [f"--run-dir={run / 'routes'}", "--sampling.record_routes=true"])
    with pytest.raises(UsageError, match="sampling.record_routes"):
        train(other)
    folders = [str(run / "rollouts"), "--output", str(run / "judged")]
    assert main(["rollouts", "reverify", *folders, "--task", CALCULATOR]) != 0
    assert "--task" in capsys.readouterr().err
