import pytest

from grre_jax import rollouts
from grre_jax.rollouts import manifest
from grre_jax.rollouts.storage.local import INCOMPLETE


def test_an_intact_folder(folder):
    report = rollouts.verify(folder)
    assert report.ok and (report.datasets, report.groups, report.intact_groups) == (3, 12, 12)
    assert report.bytes == sum(
        path.stat().st_size for path in folder.rglob("*/*") if path.is_file()
    )


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json", "metadata.json"])
def test_a_damaged_description_is_found_and_its_groups_are_intact(folder, flip, name):
    entry = rollouts.read(folder).datasets[2]
    flip(folder / entry.name / name, 20)
    report = rollouts.verify(folder)
    assert [problem.file for problem in report.problems] == [
        str(folder / entry.name / name)
    ] and report.intact_groups == 12
    (folder / entry.name / name).unlink()
    report = rollouts.verify(folder)
    assert "missing" in str(report.problems[0]) and report.intact_groups == 12


def test_a_damaged_manifest_line_is_found_and_the_other_data_sets_are_checked(folder, flip):
    flip(folder / manifest.FILENAME, 30)
    report = rollouts.verify(folder)
    assert "line 1: damaged" in str(report.problems[0]) and report.intact_groups == 8
    with pytest.raises(manifest.CorruptManifest, match="line 1"):
        rollouts.read(folder)


def test_what_is_unfinished_is_shown_and_is_no_damage(folder):
    (folder / INCOMPLETE / "x").mkdir()
    with open(folder / manifest.FILENAME, "ab") as file:
        file.write(b'{"name":"torn')
    report = rollouts.verify(folder)
    assert report.ok and report.incomplete == ["manifest.jsonl (its last line)", ".incomplete/x"]


def test_places_of_unknown_policies_are_no_duplicates(tmp_path, make_group):
    for writer in ("a", "b"):
        rollouts.write(
            tmp_path / "r",
            [make_group(0, version=-1, token_versions=None), make_group(1)],
            writer=writer,
        )
    report = rollouts.verify(tmp_path / "r")
    assert report.ok and len(report.duplicates) == 1 and report.duplicates[0].endswith("group g1")
