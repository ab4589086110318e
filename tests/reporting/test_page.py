"""The report's page: everything in one file, nothing a run wrote is taken for HTML, and a browser shows it without a complaint."""

import html.parser
import io
import json
import re
import shutil
import subprocess

import pytest
from rich.console import Console

from grre_jax import rollouts
from grre_jax.reporting.completions import shown_groups
from grre_jax.reporting.report import report
from grre_jax.rollouts import Group

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=5000"]
EVIL = '<script>throw new Error("from a completion")</script>'


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


def group(number, rewards):
    texts = [f"completion {k} of {number} {EVIL}" for k in range(len(rewards))]
    return Group(
        group_id=f"g{number}",
        question_id=f"question {number}",
        prompt=f"prompt {number} & more",
        answer="<b>",
        texts=texts,
        rewards=rewards,
        position=number,
    )


@pytest.fixture
def run(make_run):
    folder = make_run("run <1>", steps=20, not_finite=(7,))
    (folder / "config.json").write_text(json.dumps({"name": "x", "task": {"name": "arithmetic", "options": {}}, "seed": 3}))
    rollouts.write(folder / "rollouts", [group(n, [0, 1, 0.5, 1, 0, 0.25]) for n in range(9)], writer="w", policy_version=-1)
    return folder


@pytest.fixture
def page(run):
    return report(run, console=Console(file=io.StringIO())).page_path


def test_everything_is_in_one_file(page):
    text = page.read_text()
    found = Found(text)
    pictures = found.all("img")
    assert [picture["alt"] for picture in pictures] == ["overview"] and pictures[0]["src"].startswith("data:image/png;base64,iVBOR")
    for tag, attributes in found.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("data:", "#")), (tag, attributes)
    assert found.all("script") == [] and "run <1>" in found.text
    for shown in ("accuracy, best", "task.name", "arithmetic", "seed", "mean of the last tenth", "tokens_per_second"):
        assert shown in found.text
    assert re.search(r"entropy</td>(<td>[^<]*</td>){4}<td>1</td>", text)  # one step was not finite


def test_completions_are_shown_by_reward_and_as_text(page):
    found = Found(page.read_text())
    assert EVIL in found.text and "prompt 0 & more" in found.text and "expected <b>" in found.text
    for number in (0, 3, 5, 8):  # the first, the last, and between
        order = [found.text.index(f"completion {k} of {number} ") for k in (1, 3, 4)]
        assert order == sorted(order)
    assert "completion 2 of 0" not in found.text and "question 1" not in found.text  # of six the two best and the two worst


def test_rollouts_that_cannot_be_read_cost_the_completions_alone(run):
    (run / "rollouts" / "manifest.jsonl").write_text("damaged\n")
    said = Console(file=io.StringIO(), width=300)
    text = report(run, console=said).page_path.read_text()
    assert "completions of run <1> are not shown" in said.file.getvalue() and "Diagnostics" in text
    assert 'id="completions"' in text and '<p class="note">no completions: ' in text and "manifest.jsonl" in text


def test_a_run_without_its_rollouts_says_so(make_run):
    bare, kept = (make_run(name, steps=4, every=2) for name in ("bare", "kept"))
    rollouts.write(kept / "rollouts", [group(0, [0, 1])], writer="w", policy_version=-1)
    for folders in ([bare], [bare, kept]):
        text = report(folders, console=Console(file=io.StringIO())).page_path.read_text()
        section = re.search('<section id="completions">.*?</section>', text, re.DOTALL)[0]
        assert section.count("no completions: the run's rollouts are not there".replace("'", "&#x27;")) == 1
    assert "completion 1 of 0" in section  # the other run's


def test_a_group_is_shown_once(tmp_path):
    rollouts.write(tmp_path, [group(n, [0, 1] if n == 2 else [1, 1]) for n in range(9)], writer="w", policy_version=-1)
    assert [shown.title for shown in shown_groups(tmp_path)] == ["question 0", "question 2", "question 5", "question 8"]


def test_of_several_runs_the_fields_that_differ_come_first(make_run):
    folders = [make_run(name, steps=4, every=2) for name in "ab"]
    for seed, folder in enumerate(folders):
        (folder / "config.json").write_text(json.dumps({"name": "same", "seed": seed}))
    found = Found(report(folders, console=Console(file=io.StringIO())).page_path.read_text())
    assert [attributes.get("class") for attributes in found.all("tr")].count("differs") == 1
    assert "2 fields, 1 differ" in found.text and "seed01namesamesame" in found.text


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_a_browser_shows_it(page, tmp_path):
    """Its pictures are decoded, its sections have a size, and its console stays empty."""
    script = "<script>document.title = JSON.stringify({pictures: [...document.images].map(i => i.naturalWidth), sections: [...document.querySelectorAll('section')].map(s => s.offsetHeight)})</script>"
    copy = tmp_path / "page.html"
    copy.write_text(page.read_text().replace("</body>", f"{script}</body>"))
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", copy.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr
    sizes = json.loads(html.unescape(re.search("<title>(.*?)</title>", done.stdout)[1]))
    assert len(sizes["pictures"]) == 1 and min(sizes["pictures"]) > 500
    assert len(sizes["sections"]) == 5 and min(sizes["sections"]) > 20
