"""`grre rollouts rescore` and `reverify` as they are typed."""

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.cli import entry
from grre_jax.training import policies

from ..groups import text_group


@pytest.fixture
def folder(tmp_path):
    texts = ["2", "it is 2", "3"]
    groups = [text_group(n, texts, [1, 0, 0], prompt="1+1=", answer="2") for n in range(3)]
    rollouts.write(tmp_path / "r", groups, writer="w", metadata={"task": "gsm8k"})
    return tmp_path / "r"


def run(*words):
    return entry.main(["rollouts", *map(str, words)])


def test_a_verifier_of_ones_own_judges_again_in_processes(folder, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import os\nfrom grre_jax.tasks import Verdict\n"
        "class Mine:\n"
        "    name = 'mine'\n"
        "    def __init__(self, right): self.right = right\n"
        "    def question(self, position): raise NotImplementedError\n"
        "    evaluation = question\n"
        "    def verify(self, question, completion):\n"
        "        if completion == '3': os._exit(1)\n"
        "        return Verdict(self.right)\n"
        "def build(right): return Mine(right)\n"
    )
    words = ("--task.options.right", 0.5, "--task.verify_processes", "1")
    words += ("--task", f"{tmp_path / 'mine.py'}:build", "--task.verify-timeout", "20")
    assert run("reverify", folder, "--output", tmp_path / "out", *words) == 0
    said = capsys.readouterr().out
    assert "9 rewards changed" in said
    copy = rollouts.read(tmp_path / "out")
    for group in copy:
        np.testing.assert_array_equal(group.rewards, [0.5, 0.5, np.nan])
    assert "mine.py" in copy.datasets[0].metadata["history"][0]["task"]


def test_a_checkpoint_scores_what_it_sampled(tiny_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(policies, "ROW_TOKENS", 64)  # quicker to compile
    words = ("rescore", tiny_run / "rollouts", "--model", f"{tiny_run}:0", "--as", "reference")
    assert run(*words, "--output", tmp_path / "out") == 0
    assert f"under {tiny_run}:0 as reference log-probs" in capsys.readouterr().out
    group = rollouts.read(tmp_path / "out")[0]
    np.testing.assert_allclose(group.ref_logprobs, group.behavior_logprobs, atol=1e-5)


@pytest.mark.slow
def test_tasks_of_a_cluster_score_as_one_process(tiny_run, tmp_path):
    pytest.importorskip("ray", reason="needs the extra cluster")
    words = ("rescore", tiny_run / "rollouts", "--model", tiny_run, "--as", "reference")
    assert run(*words, "--output", tmp_path / "alone") == 0
    assert run(*words, "--output", tmp_path / "spread", "--cluster", "local") == 0
    alone, spread = (rollouts.read(tmp_path / name) for name in ("alone", "spread"))
    assert len(spread.datasets) > 1 and list(spread) == list(alone)
    assert [part.metadata for part in spread.datasets] == [part.metadata for part in alone.datasets]
