"""`grre rollouts rescore` and `reverify` as they are typed."""

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.cli import entry
from grre_jax.rollouts.tools.rescore import Scorer
from grre_jax.tasks import CharTokenizer
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


def test_reverify_prints_what_changed(folder, tmp_path, capsys):
    words = ("--task.verify-processes", "0")
    assert run("reverify", folder, "--task", "gsm8k", "--output", tmp_path / "out", *words) == 0
    out = capsys.readouterr().out
    assert "3 of 9 rewards changed" in out
    copy = rollouts.read(tmp_path / "out")
    assert [group.rewards.tolist() for group in copy] == [[1, 1, 0]] * 3
    assert copy[0].components["correct"].tolist() == [1, 1, 0]
    (step,) = copy.datasets[0].metadata["history"]
    assert step["task"] == "gsm8k"
    assert step["reward"].startswith("grre_jax.tasks.gsm8k:GSM8K.verify ")


def test_a_verifier_of_ones_own_runs_in_processes(folder, tmp_path, capsys):
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
    out = capsys.readouterr().out
    assert "9 of 9 rewards changed" in out
    assert "3 from 0.0 to None" in out
    for group in rollouts.read(tmp_path / "out"):
        assert group.judged.tolist() == [True, True, False]
        assert group.judged_rewards.tolist() == [0.5, 0.5]


def test_rescore_finds_its_policy_and_says_what_it_did(folder, tmp_path, capsys, monkeypatch):
    def find(name, *dtypes):
        def zero(groups, temperature):
            return [np.full(len(g.tokens), -temperature, np.float32) for g in groups]

        assert dtypes == ("bfloat16", "")
        tokenizer = CharTokenizer("1234567890+= its$", eos="$")
        return Scorer(zero, tokenizer, 99, 99, "float32", {"model": name})

    monkeypatch.setattr(policies, "find_scorer", find)
    words = "--model runs/a:4 --as reference --temperature 0.5 --dtype bfloat16".split()
    assert run("rescore", folder, "--output", tmp_path / "out", *words) == 0
    assert "scored 3 groups under runs/a:4 as reference log-probs" in capsys.readouterr().out
    for group in rollouts.read(tmp_path / "out"):
        assert set(group.ref_logprobs) == {np.float32(-0.5)}


@pytest.mark.slow
def test_tasks_of_a_cluster_score_as_one_process(tiny_run, tmp_path):
    pytest.importorskip("ray", reason="needs the extra cluster")
    words = ("rescore", tiny_run / "rollouts", "--model", tiny_run, "--as", "reference")
    assert run(*words, "--output", tmp_path / "alone") == 0
    assert run(*words, "--output", tmp_path / "spread", "--cluster", "local") == 0
    alone, spread = (rollouts.read(tmp_path / name) for name in ("alone", "spread"))
    assert len(spread.datasets) > 1 and list(spread) == list(alone)
    assert [entry.metadata for entry in spread.datasets] == [
        entry.metadata for entry in alone.datasets
    ]
