import dataclasses

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding

from ....groups import played_group


def odd_groups(make_group):
    """Groups in which every column has something that a file format could lose."""
    group = make_group(2, mask=[0] + [1] * (len(make_group(2).tokens) - 1))
    none = dict.fromkeys(("behavior_logprobs", "sampling_logprobs", "policy_logprobs", "mask"))
    missing = [1, np.nan, 0, 0]
    return [
        group,
        dataclasses.replace(
            group, behavior_logprobs=None, extra={"deep": [{"a": None}, 1e300], "é": "\n"}
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
    if kind == "parquet":  # its texts are UTF-8
        groups[2] = make_group(3)
    metadata = {"contains": ["gsm8k/test"], "tokenizer": "abc"}
    rollouts.write(tmp_path / "r", groups[:5], writer="a", metadata=metadata)
    rollouts.write(tmp_path / "r", groups[5:], writer="b", policy_version=-1)
    assert rollouts.export(tmp_path / "r", tmp_path / f"e.{kind}") == len(groups)
    rollouts.import_rows(kind, tmp_path / f"e.{kind}", tmp_path / "i")
    before, after = rollouts.read(tmp_path / "r"), rollouts.read(tmp_path / "i")
    assert list(map(encoding.encode, after)) == list(map(encoding.encode, groups))
    for old, new in zip(before.datasets, after.datasets, strict=True):
        for name in ("writer", "policy_version", "positions", "tokens"):
            assert getattr(new, name) == getattr(old, name)
        (step,) = new.metadata["history"]
        assert step["source_file"] == f"e.{kind}"
        assert new.metadata == old.metadata | {"history": [step]}


def test_wrong_exports_leave_no_file(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "e.jsonl").touch()
    for source, name, error, named in (
        (folder, "e.csv", UsageError, "e.csv"),
        (folder, "e.jsonl", UsageError, "e.jsonl"),
        (folder, "nowhere/e.jsonl", DataError, "nowhere"),
        (tmp_path / "empty", "f.jsonl", DataError, "empty"),
    ):
        with pytest.raises(error, match=named):
            rollouts.export(source, tmp_path / name)
    entry = rollouts.read(folder).datasets[2]
    (folder / entry.name / entry.data_file).write_bytes(b"")
    with pytest.raises(rollouts.CorruptShard):
        rollouts.export(folder, tmp_path / "damaged.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.jsonl", "empty", "rollouts"]
