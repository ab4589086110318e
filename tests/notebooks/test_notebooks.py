"""The shorter notebooks, executed from their first cell to their last, at the setting that each names in its first cell."""

import os
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]
FEW = {
    "derivation": {"ALGORITHMS": ["reinforce", "rec_oneside_nois"]},
    "your_own": {"STEPS": 4, "WARM_START": 6, "QUESTIONS": 16},
}


def read(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="module", params=FEW)
def executed(request, tmp_path_factory):
    """A notebook after a run with its few steps, and the folder it ran in."""
    folder, notebook = tmp_path_factory.mktemp(request.param), read(request.param)
    (parameters,) = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())]
    few = "\n".join(f"{name} = {value!r}" for name, value in FEW[request.param].items())
    notebook.cells.insert(parameters + 1, nbformat.v4.new_code_cell(few))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return request.param, notebook, folder


def printed(notebook):
    return "".join(output.text for cell in notebook.cells for output in cell.get("outputs", ()) if output.output_type == "stream")


def test_it_says_what_it_claims(executed):
    name, notebook, folder = executed
    said, pictures = (
        printed(notebook),
        sum("image/png" in output.get("data", ()) for cell in notebook.cells for output in cell.get("outputs", ())),
    )
    if name == "derivation":
        difference = float(said.split("largest difference: ")[1].split()[0])
        assert difference < 1e-9 and pictures == 1 and "rec_oneside_nois" in said
    else:
        assert pictures == 2 and "90 groups" in said
        assert (folder / "runs" / "from_answers" / "report.html").is_file()


@pytest.mark.parametrize("name", FEW)
def test_it_is_valid_names_its_setting_and_traces_no_machine(name):
    notebook, text = read(name), (ROOT / "notebooks" / f"{name}.ipynb").read_text()
    nbformat.validate(notebook)
    assert "colab.research.google.com" in notebook.cells[0].source and "%pip install" in notebook.cells[1].source
    assert all(parameter in notebook.cells[0].source for parameter in FEW[name]) and "tests run this notebook" in notebook.cells[0].source
    assert not any(trace in text for trace in ("/root/", "/home/", "/tmp/", "Traceback", str(ROOT)))
