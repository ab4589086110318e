"""One small run of each study is in the suite; all other tests of `research/` are slow."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
IN_SUITE = (
    "test_a_study_of_six_runs_end_to_end",
    "test_the_benchmark_end_to_end_with_a_strangers_loss",
    "test_it_is_grre_train",
    "test_steps_in_the_graph_are_the_train_steps",
    "test_the_table_of_some_algorithms_is_the_documented_one",
    "test_every_measured_number_of_the_pages_is_that_of_its_file",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(FOLDER) and item.originalname not in IN_SUITE:
            item.add_marker(pytest.mark.slow)
