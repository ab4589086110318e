import dataclasses
import json

import numpy as np
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding
from grre_jax.rollouts.tools.exchange import exporters


def odd_groups(make_group):
    """Groups in which every column has something that a file format could lose."""
    group = make_group(2)
    nan = group.policy_logprobs.copy()
    nan[group.mask == 0] = np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[
        0
    ]  # a NaN that is not NumPy's own
    nan[0], group.mask[0] = (-np.inf, 0) if group.mask[0] == 0 else (nan[0], 1)
    return [
        group,
        dataclasses.replace(
            group,
            policy_logprobs=nan,
            behavior_logprobs=None,
            extra={"deep": [{"a": None}, 1e300], "é": "\n"},
        ),
        make_group(
            3,
            texts=["\ud800 alone", "\x00", "", "🙂\u2028"],
            prompt="\udfff",
            components={},
            token_versions=None,
        ),
        rollouts.Group(group_id="", prompt="", texts=[""], rewards=[-0.0]),
        make_group(
            4,
            lengths=[0] * 4,
            tokens=[],
            mask=[],
            behavior_logprobs=None,
            sampling_logprobs=None,
            policy_logprobs=None,
            token_versions=None,
        ),
        make_group(
            5,
            prompt_tokens=[],
            seed=-(2**63),
            temperature=0.1 + 0.2,
            is_expert=[1, 0, 1, 1],
            mask=None,
        ),
        make_group(
            6, rewards=np.float32([0.1, 1e-45, 3.4e38, -1 / 3]), sources=["", "a", "b", "c"]
        ),
        make_group(7, question_id="", answer="", engine=""),
        dataclasses.replace(
            group, ref_logprobs=group.policy_logprobs * 2, prox_logprobs=group.behavior_logprobs / 3
        ),
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_export_imports_as_what_it_was_bit_for_bit(tmp_path, make_group, kind):
    groups = odd_groups(make_group)
    rollouts.write(
        tmp_path / "r",
        groups[:5],
        writer="a",
        policy_version=-1,
        metadata={"contains": ["gsm8k/test"], "task": "sums"},
    )
    rollouts.write(
        tmp_path / "r",
        groups[5:],
        writer="b",
        policy_version=3,
        metadata={"checkpoint": {"3": "abc"}},
    )
    assert rollouts.export(tmp_path / "r", tmp_path / f"e.{kind}") == len(groups)
    names = rollouts.import_rows(kind, tmp_path / f"e.{kind}", tmp_path / "i")
    before, after = rollouts.read(tmp_path / "r"), rollouts.read(tmp_path / "i")
    assert list(after) == groups and len(names) == 2
    assert [*map(encoding.encode, after)] == [*map(encoding.encode, before)]  # NaN's bits too
    assert after.contains == {"gsm8k/test"}
    for old, new in zip(before.datasets, after.datasets, strict=True):
        assert (new.writer, new.policy_version, new.positions, new.tokens) == (
            old.writer,
            old.policy_version,
            old.positions,
            old.tokens,
        )
        (step,) = new.metadata["history"]
        assert (
            step["operation"] == "import"
            and step["source_file"] == f"e.{kind}"
            and step["sealed"] == old.created
        )
        assert {
            name: value for name, value in new.metadata.items() if name != "history"
        } == old.metadata
    with pytest.raises(UsageError, match="is already in"):
        rollouts.import_rows(kind, tmp_path / f"e.{kind}", tmp_path / "i")


def test_a_line_is_json_that_people_understand(folder, tmp_path, make_group):
    rollouts.export(folder, tmp_path / "e.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    group = make_group(5, version=1)
    assert len(lines) == 12 and lines[5]["prompt"] == "5+1=" and "record" not in lines[5]
    assert [
        completion["reward"] for completion in lines[5]["completions"]
    ] == group.rewards.tolist()
    assert [
        token for completion in lines[5]["completions"] for token in completion["tokens"]
    ] == group.tokens.tolist()
    assert lines[5]["data_set"]["policy_version"] == 1


def test_parquet_columns_are_nested(folder, tmp_path):
    rollouts.export(folder, tmp_path / "e.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "e.parquet")
    first = table.column("completions")[5].as_py()[0]
    group = rollouts.read(folder)[5]
    assert (
        table.num_rows == 12
        and first["tokens"] == group.tokens[: group.lengths[0]].tolist()
        and table.column("record").null_count == 12
    )
    assert (
        np.float32(first["logprobs"]).tolist()
        == group.behavior_logprobs[: group.lengths[0]].tolist()
    )


def test_wrong_exports_leave_no_file(folder, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="its format is 'csv'; use jsonl or parquet"):
        rollouts.export(folder, tmp_path / "e.csv")
    (tmp_path / "e.jsonl").touch()
    with pytest.raises(UsageError, match="exists already"):
        rollouts.export(folder, tmp_path / "e.jsonl")
    with pytest.raises(DataError, match="Cannot write .*No such file"):
        rollouts.export(folder, tmp_path / "nowhere" / "e.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no groups to export"):
        rollouts.export(tmp_path / "empty", tmp_path / "e.parquet")
    entry = rollouts.read(folder).datasets[2]
    (folder / entry.name / entry.data_file).write_bytes(b"")
    for kind in exporters.WRITERS:
        with pytest.raises(rollouts.CorruptShard):
            rollouts.export(folder, tmp_path / f"damaged.{kind}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.jsonl", "empty", "rollouts"]
