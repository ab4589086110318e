import dataclasses
import json

import numpy as np
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding
from grre_jax.rollouts.tools.exchange import exporters

from ....groups import played_group


def odd_groups(make_group):
    """Groups in which every column has something that a file format could lose."""
    group = make_group(2, mask=[0] + [1] * (len(make_group(2).tokens) - 1))
    odd = group.policy_logprobs.copy()
    odd[0] = np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[0]  # a NaN that is not NumPy's own
    none = dict.fromkeys(("behavior_logprobs", "sampling_logprobs", "policy_logprobs", "mask"))
    missing = [1, np.nan, 0, 0]
    return [
        group,
        dataclasses.replace(
            group,
            policy_logprobs=odd,
            behavior_logprobs=None,
            extra={"deep": [{"a": None}, 1e300], "é": "\n"},
        ),
        make_group(3, texts=["\ud800 alone", "\x00", "", "🙂\u2028"], prompt="\udfff"),
        rollouts.Group(group_id="", prompt="", texts=[""], rewards=[-0.0]),
        make_group(4, lengths=[0] * 4, tokens=[], token_versions=None, components={}, **none),
        make_group(5, prompt_tokens=[], seed=-(2**63), temperature=0.1 + 0.2, mask=None),
        make_group(6, rewards=np.float32([0.1, 1e-45, 3.4e38, -1 / 3]), answer="", engine=""),
        make_group(7, components={"format": missing}, sources=["", "a", "b", "c"]),
        dataclasses.replace(
            group, ref_logprobs=group.policy_logprobs * 2, prox_logprobs=group.behavior_logprobs / 3
        ),
        played_group(8),
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_export_imports_as_what_it_was_bit_for_bit(tmp_path, make_group, kind):
    groups = odd_groups(make_group)
    metadata = {"contains": ["gsm8k/test"], "tokenizer": "abc"}
    rollouts.write(tmp_path / "r", groups[:5], writer="a", metadata=metadata)
    rollouts.write(tmp_path / "r", groups[5:-1], writer="b", policy_version=3)
    rollouts.write(tmp_path / "r", groups[-1:], writer="b")
    assert rollouts.export(tmp_path / "r", tmp_path / f"e.{kind}") == len(groups)
    names = rollouts.import_rows(kind, tmp_path / f"e.{kind}", tmp_path / "i")
    before, after = rollouts.read(tmp_path / "r"), rollouts.read(tmp_path / "i")
    assert list(after) == groups and len(names) == 3
    assert [*map(encoding.encode, after)] == [*map(encoding.encode, before)]  # NaN's bits too
    assert after.contains == {"gsm8k/test"}
    for old, new in zip(before.datasets, after.datasets, strict=True):
        for name in ("writer", "policy_version", "positions", "tokens"):
            assert getattr(new, name) == getattr(old, name)
        (step,) = new.metadata["history"]
        assert step["source_file"] == f"e.{kind}" and step["sealed"] == old.created
        assert new.metadata == old.metadata | {"history": [step]}


def test_a_line_is_json_that_people_understand(folder, tmp_path, make_group):
    rollouts.export(folder, tmp_path / "e.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    group = make_group(5, version=1)
    assert len(lines) == 12 and lines[5]["prompt"] == "5+1=" and "record" not in lines[5]
    completions = lines[5]["completions"]
    assert [completion["reward"] for completion in completions] == group.rewards.tolist()
    assert sum((completion["tokens"] for completion in completions), []) == group.tokens.tolist()
    assert lines[5]["data_set"]["policy_version"] == 1


def test_parquet_columns_are_nested(folder, tmp_path):
    rollouts.export(folder, tmp_path / "e.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "e.parquet")
    first = table.column("completions")[5].as_py()[0]
    group = rollouts.read(folder)[5]
    assert table.num_rows == table.column("record").null_count == 12
    assert first["tokens"] == group.tokens[: group.lengths[0]].tolist()
    assert first["logprobs"] == group.behavior_logprobs[: group.lengths[0]].tolist()


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
