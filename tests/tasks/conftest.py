"""Where the real GSM8K files are, for the tests that can use them."""

import os
from pathlib import Path

import pytest


def find_gsm8k() -> Path | None:
    """The folder with train.jsonl, test.jsonl and example_model_solutions.jsonl: under
    GRRE_TEST_DATA, or beside the repository.
    """
    beside = [place for parent in Path(__file__).parents[2:4] for place in parent.glob("*/data")]
    places = [Path(given)] if (given := os.environ.get("GRRE_TEST_DATA")) else sorted(beside)
    candidates = [folder for place in places for folder in (place / "gsm8k", place)]
    return next((folder for folder in candidates if (folder / "test.jsonl").is_file()), None)


@pytest.fixture(scope="session")
def gsm8k_folder() -> Path:
    folder = find_gsm8k()
    if folder is None:
        pytest.skip(
            "the real GSM8K files are not here: set GRRE_TEST_DATA to a folder that has them in"
            " gsm8k/"
        )
    return folder
