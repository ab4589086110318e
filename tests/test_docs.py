"""The documentation is built with strict links, and its reference pages come from the code."""

import html
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import grre_jax
from grre_jax import objectives, tasks
from grre_jax.config import Config
from grre_jax.training.config.run import fields

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 550}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, **options, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def rows(page):
    """Cells of every row of every table of a page, as text."""
    text = page.read_text()
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL):
        cells = re.findall(r"<t[dh].*?>(.*?)</t[dh]>", row, re.DOTALL)
        cells = [html.unescape(re.sub(r"<.*?>", "", cell)) for cell in cells]
        found.setdefault(cells[0], []).append(cells)
    return found


def plain(text):
    return text.replace("`", "")


@pytest.mark.slow
def test_the_site_is_built_with_strict_links(site):
    assert (site / "index.html").is_file() and (site / "clusters" / "index.html").is_file()
    assert not (site / "hooks").exists()


@pytest.mark.slow
def test_every_field_is_in_the_reference(site):
    found = rows(site / "reference" / "configuration" / "index.html")
    for field in fields(Config(name="default")):
        (row,) = found[field.name]
        default = "must be given" if field.name == "name" else repr(field.default)
        assert row[2] == plain(default) and len(row) == 5 and all(row)


def rooms():
    """(name, public names) of every folder of the package that exports any, and of `config`."""
    walked = pkgutil.walk_packages(grre_jax.__path__, "grre_jax.")
    names = [module.name for module in walked if module.ispkg]
    for name in [*names, "grre_jax.config"]:
        room = importlib.import_module(name)
        own = [key for key in vars(room) if not key.startswith("_")]
        public = getattr(room, "__all__", own)
        modules = [key for key in own if isinstance(getattr(room, key), ModuleType)]
        if public := set(public) - set(modules):
            yield name.removeprefix("grre_jax."), sorted(public)


@pytest.mark.slow
def test_every_public_name_is_in_the_python_reference(site):
    found = dict(rooms())
    assert {"objectives", "models", "sampling", "rollouts", "config"} <= set(found)
    for room, names in found.items():
        text = (site / "reference" / "python" / room / "index.html").read_text()
        shown = set(re.findall(r'(?:id="|#)grre_jax\.(?:\w+\.)*(\w+)"', text))
        assert not set(names) - shown, room


@pytest.mark.slow
def test_every_algorithm_is_in_the_reference_with_its_formula_set(site):
    text = (site / "reference" / "algorithms" / "index.html").read_text()
    sections = dict(re.findall(r'<h2 id="(\w+)">(.*?)(?=<h2|</article>)', text, re.DOTALL))
    for row in objectives.algorithm_table():
        assert row.link in sections[row.name] and row.paper in html.unescape(sections[row.name])
        words = {"bapo", "dppo_kl", "raft", "luspo"}  # prose, with little mathematics
        assert "<math" in sections[row.name] or row.name in words


def test_the_task_of_the_page_is_a_task_whose_held_out_questions_are_never_asked(tmp_path):
    page = (ROOT / "docs" / "own-task.md").read_text()
    file = tmp_path / "products.py"
    file.write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    task = tasks.build(f"{file}:build", seed=3, largest=20)
    asked, held_out = [task.question(n) for n in range(400)], task.evaluation(1000)
    assert not {q.question_id for q in asked} & {q.question_id for q in held_out}
    again = tasks.build(f"{file}:build", seed=3, largest=20)
    assert 20 < len(held_out) < 60 and asked[7] == again.question(7)
    assert held_out == tasks.build(f"{file}:build", seed=4, largest=20).evaluation(1000)
    said = (asked[0].answer, "7" * 9, "\u00b2" * 3)
    right, number, text = (task.verify(asked[0], completion) for completion in said)
    assert [v.reward for v in (right, number, text)] == [1.0, 0.1, 0.0]
    assert right.components == {"correct": 1.0, "number": 1.0} and not any(text.components.values())


def test_contributing_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`([\w.]+/[\w./-]*|[\w-]+\.md)`", text) + re.findall(r"\]\((\S+?)\)", text)
    assert len(named) > 20 and not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.slow
def test_formulas_are_set(site):
    for page in site.rglob("index.html"):
        text = page.read_text()
        assert "arithmatex" not in text and "<merror" not in text, page
