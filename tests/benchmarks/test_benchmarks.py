"""The benchmarks as a person runs them, at a tiny size.

What they measure is counted, never judged: no test depends on a time.
"""

import json

import pytest

from grre_jax.models import ModelConfig

from .conftest import ROOT

QUICK = ("--repeats", "2", "--seconds", "0.01", "--matmul", "64")
TINY = ModelConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
)


def check_machine(machine):
    assert machine["cpu"] and machine["cores"] >= 1 and machine["jax"]
    assert str(ROOT) not in json.dumps(machine)


def check_spreads(record):
    spreads = {name: value for name, value in record.items() if isinstance(value, dict)}
    assert spreads
    for name, value in spreads.items():
        assert 0 < value["low"] <= value["median"] <= value["high"], name


def test_train_step_counts_what_it_says_and_prints_it(measured):
    text, result = measured("train_step.py", *QUICK, "--sizes", "tiny")
    check_machine(result["machine"])
    (record,) = result["results"]
    check_spreads(record)
    # Two groups: a prompt of 3 and two completions of 2, in rows of 7; positions 0 1 2, 3 4, 3 4.
    assert record["rows"] == [1, 2, 7]
    assert (record["tokens"], record["completion_tokens"]) == (14, 8)
    assert record["context"] == pytest.approx((1 + 2 + 3 + 4 + 5 + 4 + 5) / 7)
    assert record["flops"] == 3 * TINY.flops_per_token(record["context"]) * 14
    assert record["parameters"] == TINY.num_parameters
    assert record["compile_seconds"] > 0
    for words in (
        "tokens/s",
        "fraction of peak",
        "matmul peak",
        "compile s",
        "predicted floor",
        "tiny",
    ):
        assert words in text


@pytest.mark.slow
def test_packing_leaves_out_what_padding_computes(measured):
    _, result = measured("train_step.py", *QUICK, "--sizes", "tiny-ragged", "tiny-padded")
    packed, padded = result["results"]
    assert (
        packed["completion_tokens"] == padded["completion_tokens"]
        and packed["sequence_tokens"] == padded["sequence_tokens"]
    )
    assert (
        packed["sequence_tokens"]
        == packed["completion_tokens"] + 4 * 3
        == padded["tokens"]
        > packed["tokens"]
    )
    assert padded["rows"] == [2, 2, 9]
    assert (
        padded["packing_efficiency"]
        == padded["tokens"] / (4 * 9)
        < packed["packing_efficiency"]
        <= 1
    )


def test_sample_counts_what_it_says_and_prints_it(measured):
    shape = ("--rows", "4", "--samples", "1", "2", "--prompt", "3", "--new", "4")
    text, result = measured("sample.py", *QUICK, "--sizes", "tiny", *shape)
    check_machine(result["machine"])
    single, shared = result["results"]
    head = 2 * TINY.vocab_size * TINY.hidden_size
    for record, prompts in ((single, 4), (shared, 2)):
        check_spreads(record)
        assert record["tokens"] == 4 * 4
        # Contexts 1, 2, 3 in the prompt, 4, 5, 6 for the three tokens decoded; a key or value is 8
        # float32 numbers.
        prefill = prompts * (
            sum(TINY.flops_per_token(context) - head for context in (1, 2, 3)) + head
        )
        assert record["prefill_flops"] == prefill
        assert record["flops"] == prefill + 4 * sum(
            TINY.flops_per_token(context) for context in (4, 5, 6)
        )
        # The last norm is not among the layers and the head.
        weights = 4 * (TINY.num_parameters - TINY.hidden_size)
        assert record["weight_bytes"] == weights
        assert record["decode_step_bytes"] == weights + 2 * 8 * 4 * (prompts * 3 + 4 * 2)
    for words in (
        "tokens/s",
        "fraction of peak",
        "memory floor / call",
        "memory floor / decode",
        "compile s",
        "tiny, K=1",
        "tiny, K=2",
    ):
        assert words in text


def test_weights_are_counted_in_the_dtype_that_a_decode_step_reads(measured):
    shape = ("--rows", "4", "--samples", "2", "--prompt", "3", "--new", "4", "--bf16")
    _, result = measured("sample.py", *QUICK, "--sizes", "tiny", *shape)
    (record,) = result["results"]
    # The layer's two norms stay in float32.
    weights = 2 * (TINY.num_parameters - TINY.hidden_size) + 2 * 2 * TINY.hidden_size
    assert record["decode_step_bytes"] == weights + 2 * 8 * 2 * (2 * 3 + 4 * 2)
    check_spreads(record)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("sample.py", "--rows", "4", "--samples", "3"), 2, "each must divide --rows 4"),
        (("train_step.py", "--sizes", "--model", "nowhere"), 1, "nowhere"),
    ],
)
def test_what_is_asked_wrong_ends_in_one_sentence(run, arguments, status, words):
    done = run(*arguments)
    assert done.returncode == status
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["train_step", "sample", "turns"])
def test_results_in_the_repository_are_readable(name):
    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    assert result["benchmark"] == name
    check_machine(result["machine"])
    for record in result["results"]:
        check_spreads(record)


@pytest.mark.slow
def test_compile_time_compares_depths(measured):
    text, result = measured("compile_time.py", *QUICK[2:], "--repeats", "1", "--layers", "1", "2")
    assert [record["layers"] for record in result["results"]] == [1, 2]
    assert result["results"][0]["growth"] == {"low": 1.0, "median": 1.0, "high": 1.0}
    assert "times the first" in text
