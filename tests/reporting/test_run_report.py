"""The report of runs: its files, its page, and what is refused."""

import html.parser
import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.reporting import report
from grre_jax.reporting.metrics import MetricsLog
from grre_jax.rollouts import Group

from .conftest import write_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
EVIL = '<script>document.title = "ran"</script><img src="x" onerror="document.title=1">'


class Found(html.parser.HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def cards(self):
        return [found for _, found in self.tags if found.get("class", "").startswith("card ")]


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


@pytest.fixture
def no_picture(monkeypatch):
    """The overview is tested elsewhere."""
    from matplotlib.figure import Figure

    module = sys.modules["grre_jax.reporting.run_report"]
    monkeypatch.setattr(module, "overview_figure", lambda _: Figure(figsize=(1, 1)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with rollouts; only to be looked at."""
    folder = write_run(tmp_path_factory.mktemp("page") / "run <1>", steps=20)
    (folder / "config.json").write_text(json.dumps({"task": {"name": "arithmetic"}}))
    header = {"objective": "grpo (epsilon_low 0.2)", "unset line": None}
    (folder / "provenance.json").write_text(json.dumps({"header": header}))
    groups = [group(n, [0, 1, 0.5, 1, 0, 0.25]) for n in range(9)]
    rollouts.write(folder / "rollouts", groups, writer="w", policy_version=-1)
    return folder


@pytest.fixture(scope="module")
def page(run):
    # Twice the same run is that run.
    return report([run, run], completions=24, console=Console(file=io.StringIO()))


def test_everything_is_in_one_file(page, run):
    assert page == run / "report.html"
    assert (run / "plots" / "overview.png").read_bytes()[:4] == b"\x89PNG"
    (summary,) = json.loads((run / "summary.json").read_text())["runs"]
    assert (summary["steps"], summary["accuracy"][-1]["step"]) == (20, 20)
    found = Found(page)
    for tag, attributes in found.tags:
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("data:", "#")), (tag, attributes)
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 1 and tags.count("figure") == 7
    for shown in ("run <1>", "accuracy, best", "task.name", "grpo (epsilon_low 0.2)"):
        assert shown in found.text
    assert "unset line" not in found.text


def test_completions_have_their_numbers_and_are_text(page):
    found = Found(page)
    for text in (EVIL, "prompt 0 & more", "expected <b>", "24 of 54 completions", "4 of 9 groups"):
        assert text in found.text
    for number in (0, 3, 5, 8):  # the first, the last, and between; the best completions first
        order = [found.text.index(f"completion {k} of {number} ") for k in (1, 3, 2, 5, 0, 4)]
        assert order == sorted(order)
    first, *others = found.cards()
    numbers = [float(first[f"data-{x}"]) for x in ("reward", "advantage", "length", "logprob")]
    assert numbers == pytest.approx([1, 1 - 2.75 / 6, 2, -1])
    assert first["class"] == "card best" and others[4]["class"] == "card worst"


def test_several_runs_are_beside_the_first(make_run, console, no_picture):
    a, b = (make_run(f"x/{name}/run", steps=4, every=2) for name in ("lr1", "lr2"))
    for seed, folder in enumerate((a, b)):
        (folder / "config.json").write_text(json.dumps({"name": "same", "seed": seed}))
    path = report([a, b], console=console)
    assert path.parent == a.parent / "lr1-run-vs-lr2-run"
    assert not (a / "summary.json").exists() and not (a / "plots").exists()
    runs = json.loads((path.parent / "summary.json").read_text())["runs"]
    assert [summary["name"] for summary in runs] == ["lr1/run", "lr2/run"]
    found = Found(path)
    assert [attributes.get("class") for _, attributes in found.tags].count("differs") == 1


def test_rollouts_that_cannot_be_read_cost_the_completions_alone(
    make_run, console, tmp_path, no_picture
):
    folder = make_run("run", steps=4, every=2)
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "manifest.jsonl").write_text("damaged\n")
    path = report([folder], rollouts={folder: tmp_path / "stored"}, console=console)
    assert "manifest.jsonl" in console.file.getvalue() and not Found(path).cards()


def test_invalid_requests_write_nothing(make_run, console, tmp_path):
    a, b, c = (make_run(name, steps=4, every=2) for name in "abc")
    MetricsLog(tmp_path / "young").close()
    (b / "config.json").write_text('{"name": ')
    before = sorted(tmp_path.rglob("*"))
    for named, error, runs, options in [
        ("--output", UsageError, [a, c], {"output": b}),
        ("--output", UsageError, [a, c], {"output": a / "metrics.jsonl"}),
        ("RUN", UsageError, [], {}),
        ("--completions", UsageError, [a], {"completions": -1}),
        ("gone", DataError, [a, tmp_path / "gone"], {}),
        ("young", DataError, [a, tmp_path / "young"], {}),
        ("config.json", DataError, [a, b], {}),
    ]:
        with pytest.raises(error, match=named):
            report(runs, console=console, **options)
    assert sorted(tmp_path.rglob("*")) == before


PROBE = """<script>addEventListener('load', () => {
  const select = document.querySelector('select'), order = [];
  for (const key of ['reward', '']) {
    select.value = key; select.dispatchEvent(new Event('change', {bubbles: true}));
    order.push([...document.querySelectorAll(key ? '.flat .card' : '.groups .card')].map(card => Number(card.dataset.reward)));
  }
  document.title = JSON.stringify({order, width: document.documentElement.scrollWidth, inner: innerWidth,
    pictures: [...document.querySelectorAll('figure svg')].map(s => s.clientWidth),
    ground: getComputedStyle(document.body).backgroundColor});
});</script>"""


def dumped(path, tmp_path, *options):
    """The title that the browser shows after the scripts ran; it reports no errors."""
    words = "--headless --no-sandbox --disable-gpu --enable-logging=stderr --dump-dom".split()
    words += [f"--user-data-dir={tmp_path / 'browser'}", *options, path.as_uri()]
    done = subprocess.run([CHROMIUM, *words], capture_output=True, text=True, check=True)
    assert "CONSOLE" not in done.stderr
    return html.unescape(done.stdout.partition("<title>")[2].partition("</title>")[0])


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.parametrize(
    "width, dark", [(1280, False), pytest.param(500, True, marks=pytest.mark.slow)]
)
def test_a_browser_shows_it(page, tmp_path, width, dark):
    inner = tmp_path / "inner.html"
    # The page's policy would not let the probe run.
    text = page.read_text().replace('http-equiv="Content-Security-Policy"', "")
    inner.write_text(text.replace("</body>", f"{PROBE}</body>"))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    seen = json.loads(dumped(inner, tmp_path, f"--window-size={width},1000", scheme))
    assert seen["width"] <= seen["inner"] and min(seen["pictures"]) > 250
    best, grouped = seen["order"]
    assert best == sorted(best, reverse=True) and len(best) == 24
    assert grouped[:6] == [1, 1, 0.5, 0.25, 0, 0]
    assert seen["ground"] == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_nothing_that_a_model_wrote_runs(page, tmp_path):
    assert dumped(page, tmp_path) == "run <1>"
