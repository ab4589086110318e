"""One small study, by the runner that all share, and made-up runs of the others are in the suite;
all other tests of `research/` are slow.
"""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
IN_SUITE = (
    "test_a_study_of_four_runs_end_to_end",
    "test_tables_of_the_pages_are_those_of_the_published_runs",
    "test_the_ranking_is_over_seeds",
    "test_every_cell_is_trained_once_and_told",
    "test_every_documented_row_is_a_case",
    "test_two_comparisons_are_one",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(FOLDER) and item.originalname not in IN_SUITE:
            item.add_marker(pytest.mark.slow)
