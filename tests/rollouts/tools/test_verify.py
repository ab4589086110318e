from grre_jax import rollouts
from grre_jax.rollouts import manifest


def test_damaged_descriptions_and_lines_are_found_and_the_rest_is_checked(folder, flip):
    path = folder / rollouts.read(folder).datasets[2].name / "features.json"
    for damage in (lambda: flip(path, 20), path.unlink):
        damage()
        report = rollouts.verify(folder)
        assert [problem.file for problem in report.problems] == [str(path)]
        assert report.intact_groups == 12
    flip(folder / manifest.FILENAME, 30)
    report = rollouts.verify(folder)
    assert "line 1:" in str(report.problems[0]) and report.intact_groups == 8
