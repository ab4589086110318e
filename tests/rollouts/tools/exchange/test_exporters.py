import dataclasses
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from grre_jax import rollouts
from grre_jax.errors import UsageError
from grre_jax.rollouts import encoding

from ....groups import played_group


def odd_groups(make_group):
    """Groups in which every column has something that a file format could lose."""
    group = make_group(2)
    none = dict.fromkeys(("behavior_logprobs", "sampling_logprobs", "policy_logprobs", "mask"))
    return [
        dataclasses.replace(
            group,
            ref_logprobs=group.policy_logprobs * 2,
            prox_logprobs=group.behavior_logprobs / 3,
            extra={"deep": [{"a": None}, 1e300], "é": "\n"},
        ),
        make_group(3, texts=["\ud800 alone", "\x00", "", "🙂\u2028"], prompt="\udfff"),
        rollouts.Group(group_id="", prompt="", texts=[""], rewards=[-0.0]),
        make_group(4, lengths=[0] * 4, tokens=[], token_versions=None, components={}, **none),
        make_group(5, seed=-(2**63), temperature=0.1 + 0.2, rewards=[0.1, 1e-45, 3.4e38, -1 / 3]),
        make_group(6, components={"format": [1, np.nan, 0, 0]}),
        played_group(8),
    ]


def as_parquet(path):
    """Writes the rows of an export as earlier versions exported Parquet."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row |= {name: json.dumps(row[name]) for name in ("extra", "data_set")}
    components = pyarrow.array(
        [list(row.pop("components").items()) for row in rows],
        pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.float32())),
    )
    table = pyarrow.Table.from_pylist(rows).append_column("components", components)
    pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_export_imports_as_what_it_was_bit_for_bit(tmp_path, make_group, kind):
    groups = odd_groups(make_group)
    if kind == "parquet":  # its texts are UTF-8
        groups[1] = make_group(3)
    metadata = {"contains": ["gsm8k/test"], "tokenizer": "abc"}
    rollouts.write(tmp_path / "r", groups[:5], writer="a", metadata=metadata)
    rollouts.write(tmp_path / "r", groups[5:], writer="b")
    assert rollouts.export(tmp_path / "r", tmp_path / "e.jsonl") == len(groups)
    if kind == "parquet":
        as_parquet(tmp_path / "e.jsonl")
    rollouts.import_rows(kind, tmp_path / f"e.{kind}", tmp_path / "i")
    before, after = rollouts.read(tmp_path / "r"), rollouts.read(tmp_path / "i")
    assert list(map(encoding.encode, after)) == list(map(encoding.encode, groups))
    for old, new in zip(before.datasets, after.datasets, strict=True):
        assert (new.writer, new.policy_version) == (old.writer, old.policy_version)
        (step,) = new.metadata["history"]
        assert step["source_file"] == f"e.{kind}"
        assert new.metadata == old.metadata | {"history": [step]}


def test_a_damaged_group_leaves_no_file_and_a_file_is_not_replaced(folder, tmp_path):
    (tmp_path / "e.jsonl").touch()
    with pytest.raises(UsageError, match="e.jsonl"):
        rollouts.export(folder, tmp_path / "e.jsonl")
    entry = rollouts.read(folder).datasets[2]
    (folder / entry.name / entry.data_file).write_bytes(b"")
    with pytest.raises(rollouts.CorruptShard):
        rollouts.export(folder, tmp_path / "damaged.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.jsonl", "rollouts"]
