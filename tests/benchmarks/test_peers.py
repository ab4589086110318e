"""The comparison with other libraries: its data, and its arithmetic with workers that only pretend."""

import numpy as np
import pytest

from grre_jax import objectives


@pytest.fixture
def peers(imported):
    return imported("peers")


class Pretender:
    """A worker whose steps take the seconds it is given, one number a request, whatever the
    count.
    """

    def __init__(self, name, seconds, asked):
        self.name, self.seconds, self.asked = name, iter(seconds), asked

    def ask(self, request):
        if "load" in request:
            return {"parameters": 10, "rows": [2, 3], "first_step_seconds": 1.0}
        self.asked.append((self.name, request["count"]))
        return {"seconds": next(self.seconds) * request["count"]}


def test_ratios_are_taken_round_by_round_in_turns(peers, tmp_path):
    # The first number is the step that sets the count: 2 s are filled by 4 steps of 0.5 s, and by 1
    # of 4 s.
    asked = []
    workers = {
        "ours": Pretender("ours", [0.5, 1, 2, 4], asked),
        "trl": Pretender("trl", [4.0, 3, 4, 40], asked),
    }
    ours, trl = peers.measure(peers.WORKLOADS["tiny"], workers, 3, 2.0, tmp_path / "data.npz")
    assert asked == [("ours", 1), ("trl", 1)] + 3 * [("ours", 4), ("trl", 1)]
    assert ours["ratio"] == {"low": 1, "median": 1, "high": 1}
    # 3/1, 4/2, 40/4: the median of the ratios, which is not the ratio 4/2 of the medians.
    assert trl["ratio"] == {"low": 2, "median": 3, "high": 10}
    rate = peers.WORKLOADS["tiny"].tokens()
    assert trl["tokens_per_second"] == {"low": rate / 40, "median": rate / 4, "high": rate / 3}


def test_peers_pad_the_groups_of_ours(peers, imported, tmp_path):
    serve, path = imported("peer_serve"), tmp_path / "data.npz"
    work = peers.WORKLOADS["ragged"]
    peers.write_data(work, path)
    groups = work.batch(imported("sizes").SHAPES[work.model].vocab_size)
    padded = serve.padded_rows(path, work.new_tokens)
    assert padded.completions.shape == (work.groups * work.samples, work.new_tokens)
    assert serve.padded_rows(path).completions.shape[1] == work.lengths().max() < work.new_tokens
    row = 0
    for group in groups:
        for tokens in np.split(group.tokens, np.cumsum(group.lengths)[:-1]):
            assert (padded.prompts[row] == group.prompt_tokens).all()
            assert (padded.completions[row, : len(tokens)] == tokens).all()
            assert (padded.completions[row, len(tokens) :] == serve.PAD).all()
            assert padded.mask[row].sum() == len(tokens)
            row += 1
    assert row == len(padded.prompts)
    rewards = np.concatenate([group.rewards for group in groups])
    ids = np.repeat(np.arange(work.groups), work.samples)
    lengths = work.lengths().reshape(-1)
    shaped = objectives.shape_data(objectives.algorithm("grpo"), rewards, ids, lengths=lengths)
    np.testing.assert_allclose(padded.advantages, shaped.advantages, rtol=1e-5)
