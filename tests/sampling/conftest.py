import pytest

from ..models.conftest import random_model

VOCAB = 24
ENDS = (0, 5, 11, 17)  # 0 is also what rows are padded with


def make_model(**options):
    """A small model whose attention matters: with matrices of the usual size it is nearly even."""
    return random_model(0.6, **{"vocab_size": VOCAB, "head_dim": 8, "eos_ids": ENDS} | options)


@pytest.fixture(scope="session")
def tiny():
    return make_model
