import pytest

from grre_jax import rollouts
from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage.local import INCOMPLETE


def test_an_intact_folder(folder):
    report = rollouts.verify(folder)
    assert report.ok and (report.datasets, report.groups, report.intact_groups) == (3, 12, 12)
    files = [path for path in folder.rglob("*/*") if path.is_file()]
    assert report.bytes == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json", "metadata.json"])
def test_a_damaged_description_is_found_and_its_groups_are_intact(folder, flip, name):
    path = folder / rollouts.read(folder).datasets[2].name / name
    for damage in (lambda: flip(path, 20), path.unlink):
        damage()
        report = rollouts.verify(folder)
        assert [problem.file for problem in report.problems] == [str(path)]
        assert report.intact_groups == 12


def test_a_damaged_manifest_line_is_found_and_the_other_data_sets_are_checked(folder, flip):
    flip(folder / manifest.FILENAME, 30)
    report = rollouts.verify(folder)
    assert "line 1:" in str(report.problems[0]) and report.intact_groups == 8


def test_what_is_unfinished_is_shown_and_is_no_damage(folder):
    (folder / INCOMPLETE / "x").mkdir()
    with open(folder / manifest.FILENAME, "ab") as file:
        file.write(b'{"name":"torn')
    report = rollouts.verify(folder)
    assert report.ok and report.incomplete == ["manifest.jsonl (its last line)", ".incomplete/x"]


def test_places_of_unknown_policies_are_no_duplicates(tmp_path, make_group):
    groups = [make_group(0, version=-1, token_versions=None), make_group(1)]
    for writer in ("a", "b"):
        rollouts.write(tmp_path / "r", groups, writer=writer)
    report = rollouts.verify(tmp_path / "r")
    assert report.ok and [said.split()[-1] for said in report.duplicates] == ["g1"]
