"""The examples in docstrings are run, each in an empty folder and with its own imports."""

import ast
import doctest
from pathlib import Path

import pytest

import grre_jax

pytestmark = pytest.mark.usefixtures("no_reports")

PACKAGE = Path(grre_jax.__file__).parent
PUBLIC = (*PACKAGE.rglob("__init__.py"), PACKAGE / "config.py")  # what these import is public


def module_name(file):
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def docstrings(node, name):
    """Yields name, first line and text of each docstring of a module with an example.

    Read from the source: the import hook that checks arrays leaves functions without a docstring.
    """
    text = ast.get_docstring(node, clean=False)
    if text and ">>>" in text:
        yield name, node.body[0].lineno - 1, text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from docstrings(child, f"{name}.{child.name}")


def examples():
    """Returns the examples of the package, one `DocTest` per docstring."""
    parser = doctest.DocTestParser()
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text()
        if ">>>" in source:
            for name, line, text in docstrings(ast.parse(source), module_name(file)):
                found.append(parser.get_doctest(text, {}, name, str(file), line))
    return found


EXAMPLES = examples()


def run(example):
    """Returns the number of failed lines of an example, and doctest's report of them."""
    said = []
    example.globs = {"__name__": "__main__"}
    failed, _ = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    return failed, "".join(said)


def case(example):
    """An example as a parameter; the run of `grre.train` is README's too (test_api)."""
    marks = pytest.mark.slow if example.name == "grre_jax.api.train" else ()
    return pytest.param(example, id=example.name, marks=marks)


@pytest.mark.parametrize("example", map(case, EXAMPLES))
def test_an_example_prints_what_it_shows(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, said = run(example)
    assert not failed, said


def test_public_names_have_examples():
    public = {
        f"{node.module}.{alias.name}"
        for file in PUBLIC
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    checked = {
        example.name
        for example in EXAMPLES
        if any(line.want and doctest.SKIP not in line.options for line in example.examples)
    }
    assert len(checked & public) >= 30
