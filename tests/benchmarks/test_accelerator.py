"""The accelerator in minutes: every part at a tiny size, and what becomes of parts that fail."""

import json

import pytest

SMALL = ("--shape", "tiny", "--rows", "4", "--repeats", "2", "--seconds", "0.01", "--matmul", "64")


@pytest.fixture
def accelerator(imported):
    return imported("accelerator")


@pytest.fixture
def answered(accelerator, imported, tmp_path):
    """`answered(part, *arguments)`: the records of a part's process, made in this one."""

    def call(part, *arguments, left=1e9):
        options, answers = accelerator.options_of([*SMALL, *arguments]), tmp_path / part
        cases = accelerator.PARTS[part]
        imported("parts").work(part, lambda: cases(options), answers, left)
        about, *records = map(json.loads, answers.read_text().splitlines())
        assert about["machine"]["backend"] == "cpu" and about["machine"]["memory_bytes"] > 0
        assert {record["part"] for record in records} == {part}
        return records

    return call


def positive(spread):
    return 0 < spread["low"] <= spread["median"] <= spread["high"]


def test_a_kernel_without_parity_fails_its_case_alone(answered, imported, monkeypatch):
    kernels = imported("attention_kernels")

    def wrong_if_shared(q, k, v, seen, config):
        out = kernels.blocked_attention(q, k, v, seen, seen, scale=config.attention_scale)
        return out if seen.prefix_ids is None else out * 1.001

    monkeypatch.setattr(kernels, "attention", wrong_if_shared)
    shared, apart = answered("attention")
    assert shared["name"].startswith("prompt shared") and apart["name"].startswith("sequences")
    assert (shared["status"], shared["reason"]) == ("failed", "no parity")
    assert shared["error"] > 4 * shared["error_of_blocks"]
    assert apart["status"] == "done" and apart["kernel"] == "blocks"
    assert 0 < apart["error"] == apart["error_of_blocks"] < 1e-5
    for record in (shared, apart):
        assert positive(record["seconds"]) and positive(record["speed_over_blocks"])


@pytest.mark.slow
def test_a_part_in_a_process_of_its_own(measured):
    text, result = measured("accelerator.py", *SMALL, "--parts", "machine", "--minutes", "60")
    product, copy = result["results"]
    assert positive(product["flops_per_second"]) and positive(copy["bytes_per_second"])
    assert result["machine"]["cores"] >= 1 and "GFLOP/s" in text
