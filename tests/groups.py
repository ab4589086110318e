"""Groups that look like a sampler's."""

import numpy as np

from grre_jax import rollouts
from grre_jax.rollouts import encoding


def stored_group(
    position: int, *, completions: int = 4, longest: int = 5, version: int = 3, **fields
) -> rollouts.Group:
    """A group that fills every field, as a sampler's does."""
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


def packed_group(number, prompt=3, lengths=(2, 4, 1), **fields) -> rollouts.Group:
    """A group of random tokens of a vocabulary of 16, with what a training step needs."""
    draw = np.random.default_rng(number)
    total = sum(lengths)
    values = dict(
        group_id=f"g{number}",
        prompt="?",
        texts=[""] * len(lengths),
        rewards=draw.integers(0, 2, len(lengths)),
        prompt_tokens=draw.integers(0, 16, prompt),
        lengths=lengths,
        tokens=draw.integers(0, 16, total),
        behavior_logprobs=-draw.exponential(size=total),
    )
    return rollouts.Group(**values | fields)


def text_group(
    number, texts=("3$", "4"), rewards=(1, 0), prompt="1+2>", **fields
) -> rollouts.Group:
    """A group of imported text, without tokens."""
    return rollouts.Group(
        group_id=f"g{number}",
        question_id=f"q{number}",
        prompt=prompt,
        texts=list(texts),
        rewards=list(rewards),
        **fields,
    )


def played_group(number, **fields) -> rollouts.Group:
    """Two trajectories of a guessing game: found in the second turn, and ended at two turns."""
    defaults = dict(
        group_id=f"g{number}",
        prompt="?",
        prompt_tokens=[10],
        texts=["5<3", "1>2>"],
        tokens=[5, 11, 3, 1, 12, 2, 12],
        mask=[1, 0, 1, 1, 0, 1, 0],
        lengths=[3, 4],
        rewards=[1, 0],
        finish_reasons=["done", "turns"],
        environment="guess_number",
        environment_version="1",
        environment_seed=17,
        turn_counts=[2, 2],
        turn_tokens=[0, 1, 2, 3, 0, 1, 2, 3],
        turn_texts=[0, 1, 2, 3, 0, 1, 2, 3],
        turn_rewards=[0, 1, 0, 0],
    )
    return rollouts.Group(**(defaults | fields))


def add_field(monkeypatch) -> None:
    """Adds a field to the records that are written, as a newer minor version may."""
    contents = encoding._contents
    monkeypatch.setattr(encoding, "FIELDS", (*encoding.FIELDS, ("judge", "text")))
    monkeypatch.setattr(encoding, "_contents", lambda group: contents(group) | {"judge": b"me"})


def group_of_tfds(record) -> rollouts.Group:
    """The group of a record as TFDS returns it."""
    contents = {}
    for name, kind in encoding.FIELDS:
        value = record[name]
        if kind == "text":
            contents[name] = value if isinstance(value, bytes) else value.encode()
        else:
            contents[name] = np.asarray(value, kind).tobytes()
    return encoding._group(contents)


def chosen_groups(picks):
    """The groups that a chooser picked."""
    return [pick.source.read(pick.index) for pick in picks]
