"""Groups that look like a sampler's, and ways to damage files."""

import numpy as np
import pytest

from grre_jax import rollouts


def _group(position: int, *, completions: int = 4, longest: int = 5, version: int = 3, **fields) -> rollouts.Group:
    draw = np.random.default_rng(position + 1)
    lengths = draw.integers(1, longest + 1, completions)
    total = int(lengths.sum())
    logprobs = -draw.exponential(size=total).astype(np.float32)
    defaults = dict(
        group_id=f"g{position}",
        position=position,
        attempt=1,
        task="arithmetic",
        question_id=f"q{position}",
        prompt=f"{position}+1=",
        answer=str(position + 1),
        prompt_tokens=draw.integers(0, 50, 4),
        lengths=lengths,
        tokens=draw.integers(0, 49152, total),
        mask=draw.integers(0, 2, total),
        texts=[f"é{k} [bold]" * k for k in range(completions)],
        rewards=draw.integers(0, 2, completions) if position % 3 else np.ones(completions),
        components={"format": np.ones(completions), "shape": draw.normal(size=completions)},
        finish_reasons=["stop", "length"] * (completions // 2),
        behavior_logprobs=logprobs,
        sampling_logprobs=logprobs / 2,
        policy_logprobs=logprobs * 2,
        policy_version=np.full(completions, version),
        temperature=0.7,
        token_versions=np.repeat(np.maximum(version - np.arange(completions) % 2, -1), lengths),
        is_expert=np.arange(completions) % 2,
        top_k=40,
        top_p=0.95,
        min_p=0.05,
        seed=2**40 + 1,
        logprob_dtype="float32",
        engine="made up",
        extra={"note": ["a", {"b": None}]},
    )
    return rollouts.Group(**(defaults | fields))


@pytest.fixture(scope="session")
def make_group():
    """`make_group(position, **fields)`: a group that fills every field."""
    return _group


@pytest.fixture
def folder(tmp_path, make_group):
    """A rollout folder of three data sets with 4 groups each, at positions 0 to 11 and versions 0 to 2."""
    root = tmp_path / "rollouts"
    for version in range(3):
        groups = [make_group(4 * version + i, version=version) for i in range(4)]
        rollouts.write(root, groups, writer="sampler", policy_version=version, metadata={"task": "arithmetic"})
    return root


@pytest.fixture(scope="session")
def flip():
    """`flip(path, offset, bit=0)`: flips one bit of a file."""

    def flip_bit(path, offset, bit=0):
        data = bytearray(path.read_bytes())
        data[offset] ^= 1 << bit
        path.write_bytes(data)

    return flip_bit
