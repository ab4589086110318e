"""The shorter notebooks, executed from their first cell to their last, at the setting that each
names in its first cell (by hand, but for the shortest: their names of the package are looked up in
every run); and what all five install.
"""

import ast
import json
import os
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from grre_jax import reporting, rollouts, tasks

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


QUICKSTART = {"STEPS": 4, "SYNC_INTERVAL": 2, "WARM_START": 3, "QUESTIONS": 8}
NAMES = FEW | {"quickstart": QUICKSTART}


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
    import nbclient  # slow to import: here for one process of the suite alone

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
    assert float(said.split("largest difference: ")[1].split()[0]) < 1e-9
    assert "rec_oneside_nois" in said


def your_own(said, notebook, runs):
    assert len(shown(notebook, "image/png")) == 2 and "72 groups" in said
    task = tasks.build(f"{runs.parent / 'larger.py'}:build")
    stored = (*rollouts.read(runs / "larger/rollouts"), *rollouts.read(runs / "answers"))
    trained_on = {group.prompt for group in stored}
    assert not trained_on & {question.prompt for question in task.evaluation(99)}
    for row in reporting.read_metrics(runs / "larger")["eval"]:
        assert row["reward"] == pytest.approx(2 * row["accuracy"] - 1)  # -1 and 1 are no accuracy
    assert (runs / "from_answers" / "report.html").is_file()


def off_policy(said, notebook, runs):
    assert len(shown(notebook, "image/png")) == 3  # staleness, curves, what regularizing does
    claim, ends = shown(notebook, "text/markdown")
    assert "C2: " in said and "| sync 20 |" in claim and "| saturating |" in ends
    control = {tuple(row[2:]) for row in rows(said, "on-policy")[1:]}
    assert len(control) == 1  # the masks have nothing to stop there


def tpu_gsm8k(said, notebook, runs):
    assert "left out: TOPOLOGY is empty" in said and "6 training questions" in said
    on_policy, late = said.split("What each version samples")[1:3]
    assert "cannot act" in on_policy and "cannot act" not in late
    config = json.loads((runs / "from_stored" / "config.json").read_text())
    assert config["data"]["path"] == "runs/on_policy/rollouts"
    assert (runs / "compared" / "report.html").is_file() and len(shown(notebook, "image/png")) == 1
    evaluation = json.loads((runs / "from_stored" / "evaluation.json").read_text())
    assert evaluation["questions"] == 2 and evaluation["steps"] == [0, 2]


CHECKS = {check.__name__: check for check in (derivation, your_own, off_policy, tpu_gsm8k)}


@pytest.mark.parametrize("name", FEW)
def test_every_name_of_the_package_is_there(name):
    """Those that are imported, and attributes of what was imported; in cells that are written to
    files too.
    """
    found, used = {}, []
    for cell in read(name).cells:
        if cell.cell_type == "code":
            source = cell.source.partition("\n")[2] if cell.source[:2] == "%%" else cell.source
            for node in ast.walk(ast.parse(TransformerManager().transform_cell(source))):
                if isinstance(node, ast.ImportFrom) and (
                    str(node.module).split(".")[0] in ("grre_jax", "research")
                ):
                    exec(ast.unparse(node), found)
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    used.append(node)
    assert found
    for node in used:
        if node.value.id in found:
            getattr(found[node.value.id], node.attr)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_valid_names_its_setting_and_traces_no_machine(name):
    notebook = read(name)
    nbformat.validate(notebook)
    first, text = notebook.cells[0].source, json.dumps(notebook)
    assert "colab.research.google.com" in first and len(text) < 400_000
    assert all(f"`{parameter}`" in first for parameter in NAMES[name])
    assert not any(trace in text for trace in ("/root/", "/home/", "/tmp/", "Traceback", str(ROOT)))
