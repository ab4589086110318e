"""The sampler's comparisons: with other libraries, of refilled rows with batches, of a shared
prompt with copies. No test depends on a time.
"""

import json

import numpy as np
import pytest

TINY_SHAPE = ("--size", "tiny", "--repeats", "2")


class Pretender:
    """A worker whose calls take the seconds it is given, one number a request, and that
    generates `tokens`.
    """

    def __init__(self, library, seconds, asked, tokens=8):
        self.library, self.seconds, self.asked, self.tokens = library, iter(seconds), asked, tokens

    def ask(self, request):
        if "load" in request:
            return {
                "parameters": 10,
                "first_call_seconds": {name: 7.0 for name in request["load"]["cases"]},
            }
        self.asked.append((self.library, request["name"], request["count"]))
        return {"seconds": next(self.seconds) * request["count"], "tokens": self.tokens}


def test_libraries_take_turns_and_ratios_are_of_one_round(imported):
    peers, asked = imported("sample_peers"), []
    cases = {
        "short": imported("sample_cases").Case(4, 2, 3, 2, 5),
        "long": imported("sample_cases").Case(4, 2, 3, 2, 50),
    }
    # Two cases in turns: the first two numbers set the counts, then a pair a round.
    ours = Pretender("ours", [0.5, 1, 1, 2, 2, 3, 4, 10], asked)
    tunix = Pretender("tunix", [2, 2, 3, 9, 4, 8, 40, 80], asked)
    records = peers.measure({}, cases, {"ours": ours, "tunix": tunix}, 3, 1.0)
    one_round = [
        ("ours", "short", 2),
        ("tunix", "short", 1),
        ("ours", "long", 1),
        ("tunix", "long", 1),
    ]
    assert asked == [(library, name, 1) for library, name, _ in one_round] + 3 * one_round
    by_key = {(record["case"], record["name"]): record for record in records}
    assert list(by_key) == [(name, library) for library, name, _ in one_round]
    # 3/1, 4/2, 40/4 and 9/2, 8/3, 80/10; medians of the ratios, which are not the ratios of the
    # medians.
    assert by_key["short", "tunix"]["ratio"] == {"low": 2, "median": 3, "high": 10}
    assert by_key["long", "tunix"]["ratio"] == {"low": 8 / 3, "median": 4.5, "high": 8}
    assert by_key["long", "ours"]["slowdown"] == {"low": 1.5, "median": 2, "high": 2.5}
    assert (
        by_key["short", "ours"]["slowdown"]["high"] == by_key["short", "ours"]["ratio"]["high"] == 1
    )
    assert by_key["long", "tunix"]["tokens_per_second"] == {
        "low": 8 / 80,
        "median": 8 / 9,
        "high": 1,
    }
    assert by_key["long", "tunix"]["first_call_seconds"] == 7


def test_a_library_that_stops_early_is_not_timed_as_if_it_had_not(imported):
    peers, case = imported("sample_peers"), imported("sample_cases").Case(4, 2, 3, 2, 5)
    with pytest.raises(
        peers.SampleError, match="tunix generated 7 tokens instead of 8 in the case short"
    ):
        peers.measure(
            {}, {"short": case}, {"tunix": Pretender("tunix", [1.0], [], tokens=7)}, 1, 1.0
        )


def test_peers_get_the_prompts_of_ours_once_a_completion(imported):
    cases = imported("sample_cases")
    case, end = cases.Case(6, 3, 5, 2, 7), imported("peer_serve").END
    prompts, repeated = case.prompts(32), case.repeated(32)
    assert prompts.shape == (2, 5) and repeated.shape == (6, 5)
    assert (
        (repeated == prompts[[0, 0, 0, 1, 1, 1]]).all()
        and end < prompts.min()
        and prompts.max() < 32
    )
    assert (prompts[0] != prompts[1]).any()


def test_the_worker_of_ours_samples_every_case(measured):
    shape = (
        "--rows",
        "4",
        "--samples",
        "2",
        "--prompt",
        "3",
        "--new",
        "4",
        "--limits",
        "16",
        "8",
        "--seconds",
        "0.01",
    )
    text, result = measured("sample_peers.py", *TINY_SHAPE, "--only", "ours", *shape)
    records = result["results"]
    assert [(record["case"], record["limit"]) for record in records] == [
        ("K=2, limit 8", 8),
        ("K=2, limit 16", 16),
    ]
    for record in records:
        assert (
            record["tokens"] == 16
            and record["first_call_seconds"] > 0
            and record["ratio"]["median"] == 1
        )
        assert 0 < record["tokens_per_second"]["low"] <= record["tokens_per_second"]["high"]
    for words in ("ours / this", "first call s", "K=2, limit 16", "float32, prompts shared"):
        assert words in text


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (
            "sample_peers.py",
            ("--only", "ours,verl"),
            "--only has verl: take some of ours,tunix,transformers",
        ),
        ("sample_peers.py", ("--limits", "100"), "--limits must be at least"),
        ("sample_lengths.py", ("--slots", "33"), "--slots 33 must divide the 256 lengths"),
        ("sample_prefix.py", ("--new", "1"), "--new at least 2"),
    ],
)
def test_what_is_asked_wrong_ends_in_one_sentence(run, name, arguments, words):
    done = run(name, *arguments)
    assert done.returncode == 2 and words in " ".join(done.stderr.split())


def test_list_scheduling_gives_a_free_slot_the_next_completion(imported):
    lengths = imported("sample_lengths")
    # Two slots: 5 | 2, 2, 4 begin at 0, 2, 4; the last 1 at 5, when the first slot is free.
    assert lengths.list_schedule([5, 2, 2, 4, 1], 2) == 8
    assert (
        lengths.list_schedule([5, 2, 2, 4, 1], 1) == 14
        and lengths.list_schedule([5, 2, 2, 4, 1], 5) == 5
    )
    assert lengths.batched_steps(np.array([5, 2, 2, 4, 1, 1]), 2) == 5 + 4 + 1


def test_the_file_of_lengths_is_what_its_seed_draws(imported):
    lengths = imported("sample_lengths")
    given = json.loads(lengths.FILE.read_text())
    assert given["lengths"] == lengths.draw() and len(given["lengths"]) == 256
    assert given["limit"] == 8 * given["mean"] == 256
    assert min(given["lengths"]) >= 1 and max(given["lengths"]) <= given["limit"]
    # A geometric length of mean m varies by about m, so that the mean of 256 lies within three
    # sixteenths of it.
    assert abs(np.mean(given["lengths"]) / given["mean"] - 1) < 3 / 16


def test_refilled_rows_take_fewer_steps_and_give_the_same_completions(measured, tmp_path):
    given = tmp_path / "lengths.json"
    given.write_text(json.dumps({"limit": 6, "lengths": [1, 6, 2, 3, 1, 4, 5, 2]}))
    shape = (
        "--lengths",
        str(given),
        "--slots",
        "4",
        "--samples",
        "2",
        "--prompt",
        "3",
        "--seconds",
        "0.01",
    )
    text, result = measured("sample_lengths.py", *TINY_SHAPE, *shape)
    records = result["results"]
    assert [record["name"] for record in records] == ["refilled, K=2", "batches, K=2"]
    for record in records:
        assert record["tokens"] == 24 and record["identical_completions"] == 1
        assert record["list_scheduling_steps"] == 7
        assert record["fraction_of_list_scheduling"] == 7 / record["steps"] <= 1
    assert records[0]["steps"] < records[1]["steps"] == 6 + 5
    assert records[0]["ratio"]["median"] == 1
    for words in ("bound / steps", "useful tokens/s", "8 through 4", "mean 3.0 under a limit of 6"):
        assert words in text


def test_a_shared_prompt_is_cached_once(measured):
    shape = ("--prompts", "2", "--samples", "4", "--prompt", "32", "--new", "16")
    text, result = measured("sample_prefix.py", *TINY_SHAPE, *shape)
    shared, copied = result["results"]
    # A layer of one key and one value head of 8 float32 numbers: two prompts of 32 and eight rows
    # of 16, or eight of both.
    assert shared["cache_bytes"] == 2 * 8 * 4 * (2 * 32 + 8 * 16)
    assert copied["cache_bytes"] == 2 * 8 * 4 * (8 * 32 + 8 * 16)
    assert copied["cache_bytes_ratio"] == 0.5 and shared["cache_bytes_ratio"] == 1
    assert (shared["prompts"], shared["samples"], copied["prompts"], copied["samples"]) == (
        2,
        4,
        8,
        1,
    )
    assert shared["decode_seconds"]["low"] > 0 and shared["decode_ratio"]["median"] == 1
    for words in ("KV, shared / this", "decode time, shared / this", "2 x 4", "8 x 1"):
        assert words in text


def test_turns_measures_conversations_kept_and_sampled_again(measured):
    sizes = {"rows": 1, "turns": 2, "prompt": 8, "new": 4, "observation": 3, "repeats": 1}
    given = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    text, result = measured("turns.py", "--size", "tiny", *given, "--longest", "0.01")
    kept, again, answers = result["results"]
    assert len(kept["turns"]) == len(again["turns"]) == 2
    assert kept["ratio"]["median"] == 1 and again["ratio"]["median"] > 0
    assert 0 < answers["idle"]["median"] < 1 and 0 <= answers["empty_rows"]["median"] < 1
    assert "kept / this" in text and "time without a program" in text
