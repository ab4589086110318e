"""The report's page: everything in one file, nothing a run wrote is taken for HTML, and a
browser shows it without a complaint.
"""

import html.parser
import io
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.errors import UsageError
from grre_jax.reporting.metric_names import described
from grre_jax.reporting.run_report import report
from grre_jax.rollouts import Group

from .conftest import write_run

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
FLAGS += [
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
]
EVIL = (
    '<script>throw new Error("from a completion")</script><img src="x" onerror="document.title=1">'
)


class Found(html.parser.HTMLParser):
    """Tags by name, with their attributes, and all text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def group(number, rewards, **fields):
    texts = [f"completion {k} of {number} {EVIL}" for k in range(len(rewards))]
    lengths = np.arange(1, len(rewards) + 1)
    return Group(
        group_id=f"g{number}",
        question_id=f"question {number}",
        prompt=f"prompt {number} & more",
        answer="<b>",
        texts=texts,
        rewards=rewards,
        position=number,
        prompt_tokens=[1],
        lengths=lengths,
        tokens=np.zeros(lengths.sum(), int),
        behavior_logprobs=np.repeat(-0.5 * lengths, lengths),
        **fields,
    )


@pytest.fixture(autouse=True)
def no_png_files(monkeypatch):
    """The page draws its own; those beside it are tested elsewhere."""
    module = sys.modules["grre_jax.reporting.run_report"]
    monkeypatch.setattr(module, "draw_curves", lambda _, folder, subtitle: [folder / "o.png"])


def stored_run(folder):
    write_run(folder, steps=20, not_finite=(7,))
    (folder / "config.json").write_text(
        json.dumps({"name": "x", "task": {"name": "arithmetic", "options": {}}, "seed": 3})
    )
    rollouts.write(
        folder / "rollouts",
        [group(n, [0, 1, 0.5, 1, 0, 0.25]) for n in range(9)],
        writer="w",
        policy_version=-1,
    )
    return folder


@pytest.fixture
def run(tmp_path):
    return stored_run(tmp_path / "run <1>")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of such a run; only to be looked at."""
    run = stored_run(tmp_path_factory.mktemp("page") / "run <1>")
    return report(run, completions=24, console=Console(file=io.StringIO())).page_path


def test_everything_is_in_one_file(page):
    text = page.read_text()
    found = Found(text)
    for tag, attributes in found.tags:
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("data:", "#")), (tag, attributes)
    assert (
        found.all("script") == [{}] and "run <1>" in found.text
    )  # the page's own, and only that one
    for shown in (
        "accuracy, best",
        "task.name",
        "arithmetic",
        "seed",
        "last tenth",
        "tokens_per_second",
    ):
        assert shown in found.text
    assert re.search(
        r'entropy<small>.*?</th>(<td data-label="[^"]*">[^<]*</td>){4}<td data-label="not'
        r' finite">1</td>',
        text,
    )


def test_curves_are_drawn_of_what_was_recorded_in_the_colours_of_the_page(make_run):
    folder = make_run("run", steps=4, every=2, without=("clip_fraction",))
    with open(folder / "metrics.jsonl", "a") as file:
        for kind, scalars in (
            ("train", {"effective_sample_size": 0.5, "staleness_2": 3}),
            ("eval", {"accuracy": 0.5, "reward": 0.25, "component_<i>": 0.5}),
        ):
            file.write(json.dumps({"step": 4, "kind": kind, **scalars}) + "\n")
    text = report(folder, console=Console(file=io.StringIO())).page_path.read_text()
    drawn = [figure["id"] for figure in Found(text).all("figure")]
    assert drawn == [
        "reward",
        "accuracy",
        "kl_to_start",
        "entropy",
        "response_length",
        "evaluation_reward",
        "component_%3Ci%3E",
        "train_effective_sample_size",
        "train_loss",
        "ages",
    ]
    pictures = re.findall("<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == len(drawn)
    assert not any(re.search("#[0-9a-f]{6}", picture) for picture in pictures)
    assert all("var(--run-0)" in picture for picture in pictures)
    assert described("train", "effective_sample_size").meaning in html.unescape(text)
    assert "As <code>effective_sample_size</code>" not in text
    assert "As <code>staleness</code>." in text


def test_what_ran_is_in_the_head(run):
    lines = {"objective": "grpo (epsilon_low 0.2)", "data": "on-policy", "lora": None}
    (run / "provenance.json").write_text(json.dumps({"contains": [], "header": lines}))
    text = report(run, console=Console(file=io.StringIO())).page_path.read_text()
    head = Found(text[: text.index('id="summary"')]).text
    assert "grpo (epsilon_low 0.2)" in head and "on-policy" in head and "lora" not in head
    (run / "provenance.json").unlink()  # of an older run: what its configuration says
    text = report(run, console=Console(file=io.StringIO())).page_path.read_text()
    assert '"name": "arithmetic"' in Found(text[: text.index('id="summary"')]).text


def test_completions_have_their_numbers_and_are_text(page):
    text = page.read_text()
    found = Found(text)
    assert EVIL in found.text and "prompt 0 & more" in found.text and "expected <b>" in found.text
    assert "24 of 54 completions are on this page, in 4 of 9 groups" in found.text
    for number in (0, 3, 5, 8):  # the first, the last, and between; the best completions first
        order = [found.text.index(f"completion {k} of {number} ") for k in (1, 3, 2, 5, 0, 4)]
        assert order == sorted(order)
    assert "completion 0 of 1 " not in found.text
    cards = [
        attributes
        for attributes in found.all("div")
        if attributes.get("class", "").startswith("card ")
    ]
    assert len(cards) == 24
    first = cards[0]
    assert [
        float(first[f"data-{name}"]) for name in ("reward", "advantage", "length", "logprob")
    ] == pytest.approx([1, 1 - 2.75 / 6, 2, -1])
    assert "data-version" not in first  # unknown
    assert first["class"].split()[1] == "best" and cards[5]["class"].split()[1] == "worst"


@pytest.mark.parametrize("asked, shown", [(0, 0), (1, 1), (7, 6), (10**6, 54)])
def test_as_many_completions_as_are_asked_for(run, asked, shown):
    found = Found(
        report(run, completions=asked, console=Console(file=io.StringIO())).page_path.read_text()
    )
    assert (
        sum(attributes.get("class", "").startswith("card ") for attributes in found.all("div"))
        == shown
    )
    with pytest.raises(UsageError, match="--completions must be at least 0, got -1"):
        report(run, completions=-1, console=Console(file=io.StringIO()))


def test_rollouts_that_cannot_be_read_cost_the_completions_alone(run):
    (run / "rollouts" / "manifest.jsonl").write_text("damaged\n")
    said = Console(file=io.StringIO(), width=300)
    text = report(run, console=said).page_path.read_text()
    assert "completions of run <1> are not shown" in said.file.getvalue() and "Diagnostics" in text
    assert 'id="completions"' in text
    assert '<p class="note">no completions: ' in text
    assert "manifest.jsonl" in text


def test_of_several_runs_the_fields_that_differ_come_first(make_run):
    folders = [make_run(name, steps=4, every=2) for name in "ab"]
    for seed, folder in enumerate(folders):
        (folder / "config.json").write_text(json.dumps({"name": "same", "seed": seed}))
    found = Found(report(folders, console=Console(file=io.StringIO())).page_path.read_text())
    assert [attributes.get("class") for attributes in found.all("tr")].count("differs") == 1
    assert "2 fields, 1 differ" in found.text
    assert "seed01namesamesame" in "".join(found.text.split())


PROBE = """<script>addEventListener('load', () => {
  const select = document.querySelector('select'), up = document.querySelector('.controls input'), order = [];
  for (const [key, lowest] of [['reward', false], ['length', true], ['', false]]) {
    select.value = key; up.checked = lowest;
    select.dispatchEvent(new Event('change', {bubbles: true}));
    order.push([...document.querySelectorAll(key ? '.flat .card' : '.groups .card')].map(card => Number(card.dataset[key || 'reward'])));
  }
  const out = [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80));
  parent.postMessage(JSON.stringify({order, out, width: document.documentElement.scrollWidth, inner: innerWidth,
    sections: [...document.querySelectorAll('section')].map(s => s.offsetHeight), pictures: [...document.querySelectorAll('figure svg')].map(s => s.clientWidth),
    ground: getComputedStyle(document.body).backgroundColor, text: getComputedStyle(document.querySelector('figure svg text')).fill}), '*');
});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.parametrize("width, dark", [(1280, False), (390, True)])
def test_a_browser_shows_it(page, tmp_path, width, dark):
    """Nothing is wider than the window, pictures and sections have a size and the reader's
    colours, orders are orders, the console stays empty.
    """
    inner, outer = tmp_path / "inner.html", tmp_path / "outer.html"
    text = re.sub(
        '<meta http-equiv="Content-Security-Policy".*?>', "", page.read_text()
    )  # it would not let the probe run
    inner.write_text(text.replace("</body>", f"{PROBE}</body>"))
    # A window has a least width; a frame has none.
    frame = (
        f'<iframe src="{inner.as_uri()}" style="width:{width}px;height:900px;border:0"></iframe>'
    )
    outer.write_text(
        "<!doctype html><script>onmessage = e => document.title ="
        f" e.data</script><title></title>{frame}"
    )
    found = dumped(
        outer,
        tmp_path,
        ["--window-size=1400,1000", f"--blink-settings=preferredColorScheme={0 if dark else 1}"],
    )
    seen = json.loads(html.unescape(re.search("<title>(.*?)</title>", found)[1]))
    assert seen["out"] == [] and seen["width"] <= width == seen["inner"]
    assert min(seen["pictures"]) > 250 and len(seen["sections"]) == 6 and min(seen["sections"]) > 20
    best, shortest, grouped = seen["order"]
    assert best == sorted(best, reverse=True)
    assert shortest == sorted(shortest)
    assert len(best) == len(shortest) == 24
    assert grouped[:6] == [1, 1, 0.5, 0.25, 0, 0]  # as it was
    assert (seen["ground"], seen["text"]) == (
        ("rgb(13, 17, 23)", "rgb(145, 152, 161)")
        if dark
        else ("rgb(255, 255, 255)", "rgb(89, 99, 110)")
    )


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_nothing_that_a_model_wrote_runs(page, tmp_path):
    assert "<title>run &lt;1&gt;</title>" in dumped(page, tmp_path, [])


def dumped(path, tmp_path, options):
    """The page as the browser has it after its scripts ran; the browser complains of nothing."""
    command = [
        CHROMIUM,
        *FLAGS,
        *options,
        f"--user-data-dir={tmp_path / 'browser'}",
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2000)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr
    return done.stdout
