import random
import time
from concurrent import futures

import jax
import numpy as np
import pytest

from grre_jax.parallel import mesh as meshes
from grre_jax.sampling import turns

from .. import simulated_devices
from .calls import sample, split
from .test_sampler import ALL_PARTS, ENDS, SHAPE, token_logprobs

PROMPTS = [[3, 4, 5, 0, 7, 8], [9, 2], [6]]
SAMPLES, TURN, LIMITS = 3, 5, turns.Limits(turns=4, tokens=40)
KEY = jax.random.key(0)


class Game:
    """An environment whose answers follow from what was said: some turns end it, others are answered
    by up to 20 tokens, in a random order and in other threads.
    """

    def __init__(self):
        self.answers = {}
        self.threads = futures.ThreadPoolExecutor(8)

    def observe(self, answer):
        time.sleep(random.random() / 100)
        return answer

    def __call__(self, address, sample, turn, tokens):
        said = (tuple(address), sample, turn, *map(int, tokens))
        assert said not in self.answers
        draw = np.random.default_rng(hash(said) % 2**32)
        ended = draw.random() < 0.15
        answer = None if ended else draw.integers(0, 24, draw.choice([0, 1, 3, 20])).tolist()
        self.answers[said] = answer
        return self.threads.submit(self.observe, answer)


def answered(tokens):
    future = futures.Future()
    future.set_result(tokens)
    return future


@pytest.fixture(scope="module")
def model(tiny):
    return tiny(num_layers=1)


def play(model, respond=None, rows=4, prompts=PROMPTS, **options):
    """Trajectories by (position, sample)."""
    drawn, rest = split({"max_new_tokens": TURN} | options)
    openings = [
        turns.Opening(turns.Address(i), prompt, range(SAMPLES)) for i, prompt in enumerate(prompts)
    ]
    options = {"key": KEY, "prompt_tokens": 16} | rest
    found = turns.sample_trajectories(
        model, openings, respond or Game(), LIMITS, drawn, rows=rows, **options
    )
    return {(t.address.position, t.sample): t for t in found}


@pytest.fixture(scope="module")
def together(model):
    return play(model)


def same(a, b):
    assert a.reason == b.reason and a.turns == b.turns
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_array_equal(a.mask, b.mask)
    for name in a.logprobs:
        np.testing.assert_allclose(a.logprobs[name], b.logprobs[name], atol=1e-4)


def check_rescored(model, found, temperature=1.0):
    """Stored log-probs are those of a full forward pass."""
    for (position, _), t in found.items():
        whole = [*PROMPTS[position], *t.tokens]
        row = np.zeros((1, 64), np.int32)
        row[0, : len(whole)] = whole
        expected = np.asarray(token_logprobs(model, row, np.float32(temperature)))[0]
        expected = expected[len(PROMPTS[position]) : len(whole)] * t.mask
        np.testing.assert_allclose(t.logprobs["behavior"], expected, atol=1e-4)


def test_every_turn_is_answered_and_the_first_limit_reached_is_the_reason(model):
    game = Game()
    found = play(model, game)
    check_rescored(model, found)
    reasons, sizes = set(), set()
    for t in found.values():
        length = 0
        end = 0
        for number, turn in enumerate(t.turns):
            said = t.tokens[turn.start : turn.end].tolist()
            assert turn.start == end + length and t.mask[turn.start : turn.end].all()
            assert turn.stopped == (said[-1] in ENDS)
            assert turn.stopped or len(said) == TURN or turn.end == LIMITS.tokens
            answer = game.answers.pop((tuple(t.address), t.sample, number, *said))
            end, length = turn.end, len(answer or ())
            if turn != t.turns[-1]:
                assert t.tokens[end : end + length].tolist() == answer
                sizes.add(length)
        assert end == len(t.tokens) <= LIMITS.tokens
        limit = "turns" if len(t.turns) == LIMITS.turns else "tokens"
        assert t.reason == ("done" if answer is None else limit)
        assert t.reason != "tokens" or end + length >= LIMITS.tokens
        assert t.mask.sum() == sum(turn.end - turn.start for turn in t.turns)
        assert not np.stack([*t.logprobs.values()])[:, ~t.mask].any()
        reasons.add(t.reason)
    assert not game.answers
    assert reasons == {"done", "turns", "tokens"} and {0, 20} < sizes


def test_the_last_trajectories_are_decoded_in_a_quarter_of_the_rows(model, monkeypatch):
    shapes = set()  # rows in use, and rows
    decode = turns.programs.decode

    def recorded(*arguments):
        slots = arguments[5].slot
        shapes.add((int((slots >= 0).sum()), slots.size))
        return decode(*arguments)

    def respond(address, sample, turn, tokens):
        return answered([3] if address.position == 0 and sample < 2 and turn < 2 else None)

    monkeypatch.setattr(turns.programs, "decode", recorded)
    play(model, respond, rows=8, wait=True)
    assert {(8, 8), (2, 2)} <= shapes <= {(used, 2 if used <= 2 else 8) for used in range(9)}


def test_programs_have_the_rows_and_columns_that_their_trajectories_need(model, monkeypatch):
    calls = []

    def record(name, rows, columns):
        program = getattr(turns.programs, name)

        def recorded(*arguments):
            own = arguments[columns]
            tokens = own.tokens if name == "grown" else own[0].tokens
            calls.append((name, getattr(arguments[rows], "slot", tokens), tokens))
            return program(*arguments)

        monkeypatch.setattr(turns.programs, name, recorded)

    record("gathered", 4, 3)
    record("decode", 5, 3)
    record("prefill_observations", 3, 2)
    record("grown", 0, 0)

    def respond(address, sample, turn, tokens):
        if turn == 1 or address.position == 1:
            return answered(None)
        return answered([3] * (20 if sample else 2))

    monkeypatch.setattr(turns, "ROOM", 2)
    play(model, respond, rows=3, wait=True, eos_ids=(), max_new_tokens=8)
    assert [(name, np.size(rows), columns) for name, rows, columns in calls] == [
        # 40 tokens and an observation's piece of 16; those that take rows of others are gathered
        # alone, padded to 4.
        ("gathered", 3, 64),
        ("decode", 3, 64),
        ("gathered", 4, 64),
        ("decode", 3, 64),
        ("gathered", 4, 64),
        ("decode", 3, 64),
        # A piece of 64 behind 8 tokens needs more columns, for which all are gathered again.
        ("grown", 1, 64),
        ("prefill_observations", 4, 128),
        ("gathered", 3, 128),
        ("decode", 3, 128),
        ("prefill_observations", 4, 128),
        ("gathered", 4, 128),
        ("decode", 3, 128),
    ]


def test_windows_caps_and_temperature_rescored(tiny):
    model = tiny(**ALL_PARTS)
    found = play(model, temperature=0.7, top_k=6)
    check_rescored(model, found, temperature=0.7)
    assert max(len(t.turns) for t in found.values()) > 1


def test_a_trajectory_does_not_depend_on_rows_or_the_order_of_answers(model, together, monkeypatch):
    monkeypatch.setattr(turns, "STEPS", 3)
    monkeypatch.setattr(turns, "FIRST_COLUMNS", 4)
    found = play(model, rows=2, slots=3)
    for at, expected in together.items():
        same(found[at], expected)


def test_the_first_turn_is_the_samplers_completion(model, together):
    whole = sample(model, PROMPTS, key=KEY, **SHAPE)
    for (position, k), t in together.items():
        end = t.turns[0].end
        assert end == min(whole.lengths[position, k], TURN)
        np.testing.assert_array_equal(t.tokens[:end], whole.tokens[position, k, :end])


def test_stop_strings_end_turns(model):
    def decode(ids):
        return "".join("abc"[i % 3] for i in ids)

    found = play(model, stop="b", decode=decode)
    check_rescored(model, found)
    for t in found.values():
        for turn in t.turns:
            said = decode(t.tokens[turn.start : turn.end])
            assert "b" not in said[:-1]
            assert turn.stopped or not said.endswith("b")


def test_an_observation_up_to_the_limit_ends_the_trajectory(model):
    found = play(model, lambda address, sample, turn, said: answered([1] * (40 - len(said))))
    assert {len(t.turns) for t in found.values()} == {1}


def test_the_last_turn_ends_at_the_limit_of_tokens(model):
    found = play(model, lambda *said: answered([1] * 32), eos_ids=())
    ends = {tuple((turn.start, turn.end) for turn in t.turns) for t in found.values()}
    assert ends == {((0, 5), (37, 40))}


def test_long_observations_are_prefilled_in_pieces(model, monkeypatch):
    def respond(address, sample, turn, tokens):
        return answered(None if turn else [*range(23)])

    whole = play(model, respond)
    monkeypatch.setattr(turns, "PIECES", (16,))
    for at, t in play(model, respond).items():
        same(t, whole[at])


@pytest.mark.parametrize(
    "named, options",
    [
        (
            "observation after turn 0 of sample 2.* 23,",
            {"respond": lambda _, sample, *said: answered([3, 24] if sample == 2 else None)},
        ),
        ("prompt 0", {"prompts": [[1] * 17]}),
    ],
)
def test_what_is_refused(model, named, options):
    with pytest.raises(ValueError, match=named):
        play(model, **options)


def test_several_processes_cannot_share_a_mesh(model, monkeypatch):
    automatic = (jax.sharding.AxisType.Auto,) * len(meshes.AXES)  # newer versions: Explicit
    mesh = jax.sharding.AbstractMesh((2, 1, 1, 1, 1), meshes.AXES, axis_types=automatic)
    with jax.sharding.use_abstract_mesh(mesh):
        assert play(model, prompts=[]) == {}
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(ValueError, match="process"):
            play(model, prompts=[])


SHARDED = """
import jax
from flax import nnx
from grre_jax.parallel import mesh as meshes
from tests.sampling.conftest import make_model
from tests.sampling.test_turns import play, same

graph, params = nnx.split(make_model(num_layers=1))
whole = play(nnx.merge(graph, params))
mesh = meshes.make_mesh(meshes.MeshConfig(data=2, tensor=2))
with meshes.use(mesh):
    held = jax.device_put(params, meshes.tree_shardings(params, mesh))
    cut = play(nnx.merge(graph, held))
for at, expected in whole.items():
    same(cut[at], expected)
print("the same", len(cut))
"""


@pytest.mark.slow
def test_a_trajectory_does_not_depend_on_the_devices():
    assert simulated_devices.printed(SHARDED, devices=4) == "the same 9"
