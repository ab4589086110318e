"""The shorter notebooks, executed from their first cell to their last, at the setting that each
names in its first cell (by hand, but for the shortest: their names of the package are looked up in
every run); and what all five install.
"""

import ast
import importlib.util
import json
import os
from pathlib import Path

import nbclient
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from grre_jax import rollouts, tasks

from ..tasks.datasets import published_samples
from ..test_frozen_numbers import tiny_model

ROOT = Path(__file__).parents[2]
TINY = {
    "task_options": (("operands", 2), ("answers", "short")),
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "groups": 2,
    "samples": 2,
}
FIELDS = {
    "sampling": {
        "group_size": 2,
        "max_prompt_tokens": 152,
        "max_new_tokens": 4,
        "prompts_per_call": 2,
    },
    "evaluation": {"num_samples": 2, "temperature": 1},  # as in training: one program
    "training": {"prompts_per_step": 2, "pack_length": 160, "packs_per_microbatch": 0},
    "data": {"drop_zero_variance": False},  # a random model answers nothing right
    "checkpoint": {"export": False},
    "logging": {"tensorboard": False},
    "task": {"verify_processes": 0},
    "model": {"remat": "none", "compute_dtype": "float32"},  # less to compile
    "mesh": {"fsdp": 1},
}
FEW = {
    "derivation": {"ALGORITHMS": ["reinforce", "rec_oneside_nois"]},
    "your_own": {"STEPS": 4, "WARM_START": 6, "QUESTIONS": 16},
    "off_policy": {
        "SEEDS": 2,
        "STEPS": 4,
        "SIZES": TINY | {"questions": 4, "every": 2, "imitation_steps": 4},
        "WORKERS": 1,
    },
    "tpu_gsm8k": {
        "TOPOLOGY": "",
        "DOWNLOAD": False,
        "STEPS": 2,
        "QUESTIONS": 2,
        "MORE": " ".join(
            f"--{section}.{name} {value}"
            for section, fields in FIELDS.items()
            for name, value in fields.items()
        ),
    },
}


def read(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def made(name, folder):
    """Parameters that are paths: what the notebook would download, and the repository's own
    configuration.
    """
    if name != "tpu_gsm8k":
        return {}
    from grre_jax.config import load_file

    config = ROOT / "configs" / "paper" / "gsm8k_qwen2_5_1_5b.py"
    model, data = (
        tiny_model(folder, load_file(config).model.shape),
        published_samples.gsm8k(folder / "data"),
    )
    return {"CONFIG": str(config), "MODEL": str(model), "DATA": str(data)}


def execute(name, values, folder):
    """The notebook after a run in a folder, with these values of its parameters."""
    notebook = read(name)
    cells = enumerate(notebook.cells)
    (at,) = [i for i, cell in cells if "parameters" in cell.metadata.get("tags", ())]
    few = "\n".join(f"{parameter} = {value!r}" for parameter, value in values.items())
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(few))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)  # nothing is installed
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        resources = {"metadata": {"path": str(folder)}}
        options = {"timeout": 2000, "kernel_name": "python3", "resources": resources}
        nbclient.NotebookClient(notebook, **options).execute()  # an error in a cell is raised
    return notebook


@pytest.fixture(scope="module", params=FEW)
def executed(request, tmp_path_factory):
    """A notebook after a run with its few steps, and the folder it ran in."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    return name, execute(name, FEW[name] | made(name, folder), folder), folder


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def printed(notebook):
    """What was printed; rich displays its lines in a notebook."""
    return "".join(
        output.text if output.output_type == "stream" else output.data.get("text/plain", "")
        for output in outputs(notebook)
    )


def shown(notebook, kind):
    """What was displayed of a kind, such as image/png."""
    return [output.data[kind] for output in outputs(notebook) if kind in output.get("data", ())]


def rows(said, start):
    """The rows of a printed table whose first cell begins so, as lists of cells."""
    split = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in said.splitlines()
        if line.startswith("│")
    ]
    return [row for row in split if row[0].startswith(start)]


@pytest.mark.slow
def test_it_says_what_it_claims(executed):
    name, notebook, folder = executed
    CHECKS[name](printed(notebook), notebook, folder / "runs")


def derivation(said, notebook, _):
    difference = float(said.split("largest difference: ")[1].split()[0])
    assert difference < 1e-9
    assert "rec_oneside_nois" in said


def your_own(said, notebook, runs):
    assert len(shown(notebook, "image/png")) == 2 and "72 groups" in said
    assert "questions are trained on" not in said
    task = tasks.build(f"{runs.parent / 'larger.py'}:build")
    stored = [
        group for folder in ("larger/rollouts", "answers") for group in rollouts.read(runs / folder)
    ]
    trained_on = {group.prompt for group in stored} | {
        task.question(position).prompt for position in range(1000)
    }
    assert len(trained_on) == 72 and len(task.evaluation(99)) == 18
    assert not trained_on & {question.prompt for question in task.evaluation(99)}
    evaluations = [
        json.loads(line)
        for line in (runs / "larger" / "metrics.jsonl").read_text().splitlines()
        if '"eval"' in line
    ]
    assert all(
        row["reward"] == pytest.approx(2 * row["accuracy"] - 1) for row in evaluations
    )  # -1 and 1 are no accuracy
    assert (runs / "from_answers" / "report.html").is_file()


def off_policy(said, notebook, runs):
    steps = [0, 1, 10, 19, 20, 21, 40, 60]
    versions = {
        "on-policy": steps,
        "sync 20": [0, 0, 0, 0, 20, 20, 40, 60],
        "offset 10": [0, 0, 0, 9, 10, 11, 30, 50],
        "one pass": [0] * 8,
    }
    for regime, expected in versions.items():
        assert rows(said, regime)[0][2:] == list(map(str, expected))
    assert len(shown(notebook, "image/png")) == 3  # staleness, curves, what regularizing does
    claim, ends = shown(notebook, "text/markdown")
    assert "C2: " in said and "| sync 20 |" in claim and "| saturating |" in ends
    measured = [row for regime in versions for row in rows(said, regime)[1:]]
    assert len(measured) == 12 and all("of 2" in row[5] for row in measured)
    control = [row[2:] for row in rows(said, "on-policy")[1:]]
    assert control[0] == control[1] == control[2]  # the masks have nothing to stop there


def tpu_gsm8k(said, notebook, runs):
    assert "0 cpu cpu" in said and "left out: TOPOLOGY is empty" in said
    assert "6 training questions" in said and '"question": "Tom has' in said
    on_policy, late = said.split("What each version samples")[1:3]
    assert "cannot act" in on_policy and "cannot act" not in late
    configs = {
        name: json.loads((runs / name / "config.json").read_text())
        for name in ("on_policy", "sync_20", "from_stored")
    }
    assert [config["regime"]["sync_interval"] for config in configs.values()] == [1, 20, 1]
    assert (runs / "on_policy" / "rollouts").is_dir() and not (
        runs / "from_stored" / "rollouts"
    ).exists()
    assert configs["from_stored"]["data"]["path"] == "runs/on_policy/rollouts"
    assert (runs / "compared" / "report.html").is_file() and len(shown(notebook, "image/png")) == 1
    evaluation = json.loads((runs / "from_stored" / "evaluation.json").read_text())
    assert (
        evaluation["questions"] == 2
        and evaluation["steps"] == [0, 2]
        and "pass@" in said
        and "maj@" in said
    )


CHECKS = {check.__name__: check for check in (derivation, your_own, off_policy, tpu_gsm8k)}


@pytest.mark.parametrize("name", FEW)
def test_every_name_of_the_package_is_there(name):
    """Those that are imported, and attributes of what was imported; in cells that are written to
    files too.
    """
    found = {}
    for cell in read(name).cells:
        if cell.cell_type == "code":
            source = cell.source.partition("\n")[2] if cell.source[:2] == "%%" else cell.source
            tree = ast.parse(TransformerManager().transform_cell(source))
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (
                    str(node.module).split(".")[0] in ("grre_jax", "research")
                ):
                    exec(ast.unparse(node), found)
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    if node.value.id in found:
                        getattr(found[node.value.id], node.attr)
    assert found


@pytest.mark.parametrize("name", FEW)
def test_it_is_valid_names_its_setting_and_traces_no_machine(name):
    notebook, text = read(name), (ROOT / "notebooks" / f"{name}.ipynb").read_text()
    nbformat.validate(notebook)
    assert (
        "colab.research.google.com" in notebook.cells[0].source
        and "%pip install" in notebook.cells[1].source
    )
    assert all(f"`{parameter}`" in notebook.cells[0].source for parameter in FEW[name])
    assert "tests run this notebook" in notebook.cells[0].source
    assert not any(trace in text for trace in ("/root/", "/home/", "/tmp/", "Traceback", str(ROOT)))


def installed(name, folder, monkeypatch, repository=""):
    """The commands by which a notebook's second cell would install the package, where it is
    missing.
    """
    commands = []

    class Shell:
        def system(self, line):
            commands.append(line.format(**names))

        def run_line_magic(self, magic, line):
            commands.append(f"{magic} {line}".format(**names))

    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    names = {"get_ipython": Shell}
    source = read(name).cells[1].source.replace('REPOSITORY = ""', f'REPOSITORY = "{repository}"')
    exec(TransformerManager().transform_cell(source), names)
    return commands


@pytest.mark.parametrize("name", [*FEW, "quickstart"])
def test_it_installs_what_lies_around_it_or_the_copy_that_it_was_told(name, tmp_path, monkeypatch):
    clone, elsewhere = tmp_path / "grre_jax", "https://github.com/someone/grre_jax"
    with pytest.raises(
        RuntimeError, match="web address of your copy of the repository into REPOSITORY"
    ):
        installed(name, tmp_path / "alone", monkeypatch)
    told = installed(name, tmp_path / "told", monkeypatch, repository=elsewhere)
    clone.mkdir()
    (clone / "setup.py").touch()
    inside = installed(name, clone / "notebooks", monkeypatch)
    if name in ("derivation", "off_policy"):  # research/ is not installed with the package
        assert told == [
            f"git clone --quiet --depth 1 {elsewhere} ./clone",
            "pip install --quiet ./clone",
        ]
        assert inside == ["pip install --quiet .."]
    elif name == "tpu_gsm8k":  # pip takes clone[tpu], without ./, for a project on PyPI
        assert told == [
            f"git clone --quiet --depth 1 {elsewhere} ./clone",
            'pip install --quiet "./clone[tpu]"',
        ]
        assert inside == ['pip install --quiet "..[tpu]"']
    else:
        assert told == [f"pip install --quiet git+{elsewhere}"] and inside == [
            "pip install --quiet .."
        ]
    first = read(name).cells[0].source
    assert "put it into `REPOSITORY`" in first and "no public address" in first
    text = (ROOT / "notebooks" / f"{name}.ipynb").read_text()
    assert "OWNER" not in text and text.count('REPOSITORY = \\"\\"') == 1
