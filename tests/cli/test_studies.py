"""What the command line hands to the studies."""

from pathlib import Path

import pytest

from grre_jax.cli import entry
from grre_jax.studies.claims import study as claims_study
from grre_jax.studies.staleness import study as staleness_study


@pytest.mark.parametrize(
    ("name", "module"), [("claims", claims_study), ("staleness", staleness_study)]
)
def test_the_command_line_says_what_is_studied(name, module, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "run", lambda output, **given: calls.append((output, given)))
    assert entry.main(["study", name, "--quick"]) == 0
    words = "--output there --seeds 3 --first-seed 7 --algorithm a --algorithm b.py:c"
    words += " --task precedence --greedy-bound 0.5"
    assert entry.main(["study", name, *words.split()]) == 0
    (folder, quick), second = calls
    assert folder == Path(f"runs/{name}-arithmetic-quick")
    assert quick["quick"] and quick["seeds"] is None and quick["first_seed"] == 300
    given = {"quick": False, "seeds": 3, "first_seed": 7, "workers": None}
    given |= {"algorithms": ("a", "b.py:c"), "task": "precedence", "greedy_bound": 0.5}
    assert second == (
        Path("there"),
        given | ({"again": None, "claims": ()} if name == "claims" else {}),
    )


def test_claims_and_the_second_set_are_chosen(monkeypatch):
    calls = []
    monkeypatch.setattr(claims_study, "run", lambda output, **given: calls.append(given))
    words = "study claims --claim C1 --claim C4 --again 0"
    assert entry.main(words.split()) == 0
    assert (calls[0]["claims"], calls[0]["again"]) == (("C1", "C4"), 0)


@pytest.mark.parametrize("name", ["claims", "staleness"])
def test_a_number_out_of_its_domain_is_refused(name, tmp_path, capsys):
    assert entry.main(["study", name, "--output", str(tmp_path / "study"), "--seeds", "1"]) == 2
    assert "--seeds 1" in capsys.readouterr().err
    assert (
        entry.main(["study", name, "--output", str(tmp_path / "study"), "--algorithm", "grppo"])
        == 2
    )
    assert "did you mean" in capsys.readouterr().err
    assert entry.main(["study", name, "--output", str(tmp_path / "study"), "--workers", "0"]) == 2
    assert "--workers 0" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
