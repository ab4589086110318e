"""The report of runs: its files, its page, and what is refused."""

import html
import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.reporting import report
from grre_jax.rollouts import Group

from .conftest import write_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
EVIL = '<script>document.title = "ran"</script><img src="x" onerror="document.title=1">'


def group(number, rewards):
    lengths = np.arange(1, len(rewards) + 1)
    return Group(
        group_id=f"g{number}",
        question_id=f"question {number}",
        prompt=f"prompt {number} & more",
        answer="<b>",
        texts=[f"completion {k} of {number} {EVIL}" for k in range(len(rewards))],
        rewards=rewards,
        position=number,
        prompt_tokens=[1],
        lengths=lengths,
        tokens=np.zeros(lengths.sum(), int),
        behavior_logprobs=np.repeat(-0.5 * lengths, lengths),
    )


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=300)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with rollouts; only to be looked at."""
    folder = write_run(tmp_path_factory.mktemp("page") / "run <1>", steps=20)
    header = {"objective": "grpo (epsilon_low 0.2)"}
    (folder / "provenance.json").write_text(json.dumps({"header": header}))
    groups = [group(n, [0, 1, 0.5, 1, 0, 0.25]) for n in range(9)]
    rollouts.write(folder / "rollouts", groups, writer="w", policy_version=-1)
    return folder


@pytest.fixture(scope="module")
def page(run):
    # Twice the same run is that run.
    return report([run, run], groups=4, console=Console(file=io.StringIO()))


def test_everything_is_in_one_file(page, run):
    assert (run / "plots" / "overview.png").read_bytes()[:4] == b"\x89PNG"
    (summary,) = json.loads((run / "summary.json").read_text())["runs"]
    assert (summary["steps"], summary["accuracy"][-1]["step"]) == (20, 20)
    source = page.read_text()
    assert source.count("data:image/png") == 1
    for outside in re.findall(r'(?:src|href)="([^"]*)"', source):
        assert outside.startswith(("data:", "#"))
    for shown in ("run <1>", "accuracy, best", "grpo (epsilon_low 0.2)"):
        assert shown in html.unescape(source)


def test_completions_have_their_numbers_and_are_text(page):
    source = page.read_text()
    assert EVIL not in source
    for text in (EVIL, "prompt 0 & more", "4 of 9 groups"):
        assert text in html.unescape(source)
    for number in (0, 3, 5, 8):  # the first, the last, and between; the best completions first
        order = [source.index(f"completion {k} of {number} ") for k in (1, 3, 2, 5, 0, 4)]
        assert order == sorted(order)
    assert '<div class="card best">\n<p class="facts"><span>reward <b>1</b></span>' in source


def test_several_runs_are_in_a_folder_of_their_own(make_run, console, tmp_path):
    """Rollouts that cannot be read cost the completions alone."""
    a, b = (make_run(f"x/{name}/run", steps=4, every=2) for name in ("lr1", "lr2"))
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "manifest.jsonl").write_text("damaged\n")
    path = report([a, b], tmp_path / "both", rollouts={a: tmp_path / "stored"}, console=console)
    assert path.parent == tmp_path / "both"
    assert not (a / "summary.json").exists()
    runs = json.loads((path.parent / "summary.json").read_text())["runs"]
    assert [summary["name"] for summary in runs] == ["lr1/run", "lr2/run"]
    source = path.read_text()
    assert 'class="card ' not in source
    assert "manifest.jsonl" in console.file.getvalue()


def test_invalid_requests_write_nothing(make_run, console, tmp_path):
    a, b = (make_run(name, steps=4, every=2) for name in "ab")
    (b / "provenance.json").write_text('{"name": ')
    before = sorted(tmp_path.rglob("*"))
    for named, folder in (("gone", tmp_path / "gone"), ("provenance.json", b)):
        with pytest.raises(DataError, match=named):
            report([a, folder], tmp_path / "both", console=console)
    with pytest.raises(UsageError, match="output"):
        report([a, b], console=console)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_nothing_that_a_model_wrote_runs_in_a_browser(page, tmp_path):
    words = "--headless --no-sandbox --disable-gpu --enable-logging=stderr --dump-dom".split()
    words += [f"--user-data-dir={tmp_path / 'browser'}", page.as_uri()]
    done = subprocess.run([CHROMIUM, *words], capture_output=True, text=True, check=True)
    assert "<title>run &lt;1&gt;</title>" in done.stdout and "CONSOLE" not in done.stderr
