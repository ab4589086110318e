"""The benchmarks as a person runs them, at a tiny size.

What they measure is counted, never judged: no test depends on a time.
"""

import shutil

import pytest

from grre_jax.models import ModelConfig

from .conftest import ROOT

QUICK = ("--repeats", "2", "--seconds", "0.01", "--matmul", "64")
SAMPLED = ("--rows", "4", "--prompt", "3", "--new", "4")
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
TINY = ModelConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
)


def check_spreads(record):
    spreads = [value for value in record.values() if isinstance(value, dict) and "low" in value]
    assert spreads
    for value in spreads:
        assert 0 < value["low"] <= value["median"] <= value["high"]


def test_flops_are_those_of_the_matrices(imported):
    flops_per_token = imported("sizes").flops_per_token
    # Without attention: two for every weight of a matrix, the head among them and the embedding's
    # look-up not.
    vectors = TINY.num_layers * 2 * TINY.hidden_size + TINY.hidden_size
    assert flops_per_token(TINY, 0) == 2 * (TINY.num_parameters - vectors)
    per_key = flops_per_token(TINY, 5) - flops_per_token(TINY, 4)
    assert per_key == TINY.num_layers * 2 * 2 * TINY.num_heads * TINY.head_dim


def test_train_step_counts_tokens_and_flops(measured, imported):
    _, result = measured("train_step.py", *QUICK, "--sizes", "tiny")
    assert result["machine"]["cpu"] and result["machine"]["cores"] >= 1
    (record,) = result["results"]
    check_spreads(record)
    # Two groups: a prompt of 3 and two completions of 2, in rows of 7; positions 0 1 2, 3 4, 3 4.
    context = (1 + 2 + 3 + 4 + 5 + 4 + 5) / 7
    expected = {
        "tokens": 14,
        "completion_tokens": 8,
        "sequence_tokens": 4 * (3 + 2),
        "packing_efficiency": 1,
        "context": context,
        "flops": 3 * imported("sizes").flops_per_token(TINY, context) * 14,
        "parameters": TINY.num_parameters,
    }
    assert record["rows"] == [1, 2, 7]
    assert {name: record[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("sample.py --rows 4 --samples 3", "--samples"),
        ("peers.py --only ours,verl", "--only"),
        ("time_to_accuracy.py --workload sums --only tunix", "--only"),
        ("time_to_accuracy.py --steps 30", "--every"),
        ("accelerator.py --parts run-model", "--model"),
    ],
)
def test_invalid_options_are_refused_by_name(run, words, field):
    done = run(*words.split())
    assert done.returncode == 2
    assert field in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_published_tables_are_those_of_their_files(imported, monkeypatch):
    """By the script that writes the tables of docs/performance.md."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    tables = imported("benchmark_tables")
    assert tables.main([]) == 0
    marked = set(tables.MARKED.findall(tables.PAGE.read_text()))
    assert {name for _, name, _ in marked} == {path.stem for path in RESULTS}


def test_faults_finds_what_differs(imported, tiny_run, tmp_path):
    faults = imported("faults")
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    assert all(faults.compared(run, tiny_run).values())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    shutil.rmtree(max((run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name)))
    found = faults.compared(run, tiny_run)
    assert found == {"checkpoint": False, "log": False, "groups": True, "verified": True}


@pytest.mark.slow
def test_faults_kills_a_run_and_compares_it(measured):
    _, result = measured("faults.py", "--kills", "3", "--steps", "30")
    assert result["good"] and sum(one["kills"] for one in result["results"]) == 3
