"""Where the real GSM8K files are, for the tests that can use them."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("GRRE_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="session")
def gsm8k_folder():
    if not (FOLDER / "gsm8k" / "test.jsonl").is_file():
        pytest.skip("GRRE_TEST_DATA names the folder with gsm8k/")
    return FOLDER / "gsm8k"
