"""The package's layout: the bounds of docs/design.md, held by counting."""

from . import layout_counts as counts


def test_no_two_files_import_each_other():
    assert counts.cycles(counts.imports(counts.modules())) == []


def test_imports_go_down_the_levels():
    assert counts.upward(counts.imports(counts.modules())) == []


def test_a_cycle_and_an_import_upwards_are_found():
    graph = {
        "grre_jax.models.a": {"grre_jax.sampling.b"},
        "grre_jax.sampling.b": {"grre_jax.models.a"},
    }
    assert counts.cycles(graph) == [["grre_jax.models.a", "grre_jax.sampling.b"]]
    assert counts.upward(graph) == ["grre_jax.models.a -> grre_jax.sampling.b"]


def test_lines_have_at_most_a_hundred_columns():
    assert counts.long_lines() == []


def test_public_names_have_docstrings():
    assert counts.undocumented() == []


def test_docstrings_begin_with_a_verb_or_a_noun():
    assert counts.questions() == []
