"""Stored completions with other log-probs or rewards: `rescore` has a `Scorer` compute log-probs
under a checkpoint, for data that has none or for a reference or proximal policy, and `reverify` has
another verifier judge.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from grre_jax import ray_cluster, rollouts
from grre_jax.errors import DataError
from grre_jax.rollouts import Group, RolloutReader
from grre_jax.rollouts.dataset import read_tokenised
from grre_jax.rollouts.schema import STORED_FIELDS
from grre_jax.rollouts.tools.copying import derive
from grre_jax.tasks import Question, Tokenizer
from grre_jax.tasks.judging import FAILED_REWARD, FIELD, REASONS, InProcess, Judged

FIELDS = {"behavior": "behavior_logprobs"} | STORED_FIELDS
GROUPS_AT_ONCE = 64  # packed or judged together: enough to fill rows and processes well

Score = Callable[[Sequence[Group], float], Sequence[Float[np.ndarray, " tokens"]]]


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A policy that completions are scored under.

    Args:
        score: (tokenised groups, temperature) to the log-prob of every token of each.
        tokenizer: the policy's.
        vocab_size, max_positions: of the model: a token or a length beyond them cannot be scored.
        dtype: that the log-probs are computed in.
        described: JSON fields of the policy for the copies' history: model, checkpoint, fingerprint
            and so on.
    """

    score: Score
    tokenizer: Tokenizer
    vocab_size: int
    max_positions: int
    dtype: str
    described: dict[str, Any]


def rescore(
    folder: str | Path,
    output: str | Path,
    scorer: Scorer,
    *,
    role: str = "behavior",
    temperature: float | None = None,
    replace: bool = False,
    ray: Any = None,
    load: tuple[Any, ...] = (),
) -> None:
    """Copies a rollout folder with the log-probs of its completions under a policy.

    All fields of a group are kept except three: tokens, if it has none or another tokenizer's (they
    become the policy's); the sampler's other log-probs, which new behaviour log-probs contradict;
    and the temperature, if one is requested (the former one is stored in `extra`). The data sets'
    `history` gets an entry.

    Args:
        folder: the rollout folder.
        output: the new folder, or one that an interrupted call with the same arguments began.
        scorer: the policy.
        role: a name in FIELDS: whose log-probs they are to be.
        temperature: the logits are divided by it; None takes each group's own.
        replace: overwrite log-probs of that role that groups have already.
        ray: the module, connected to a cluster, each of whose tasks scores a data set; None to
            score in this process.
        load: a function and its arguments that give the scorer in processes of the cluster; both
            are hashable.

    Raises:
        UsageError: the output holds something else.
        DataError: the folder is empty, or naming the group: it has log-probs already, was sampled
            greedily, or cannot be scored by this model.
    """
    source = rollouts.read(folder)
    step = {
        "operation": "rescore",
        "as": role,
        "temperature": temperature or "each group's own",
        "dtype": scorer.dtype,
    } | scorer.described
    own = {"tokenizer": scorer.tokenizer.fingerprint}

    options = Options(role, temperature, replace)
    if ray is None:
        derive(source, output, partial(_changed, source, scorer, options), step, own)
    else:
        change = partial(_changed_data_set, str(folder), load, options)
        derive(source, output, change, step, own, each=partial(ray_cluster.mapped, ray))


class Options(NamedTuple):
    """Options of `rescore` by the same names."""

    role: str
    temperature: float | None
    replace: bool


def _changed_data_set(
    folder: str, load: tuple[Any, ...], options: Options, numbers: range
) -> list[Group]:
    """Returns the groups of these numbers, rescored in a process of a cluster."""
    source = rollouts.read(folder)
    return list(_changed(source, _loaded(*load), options, numbers))


@functools.lru_cache(maxsize=1)  # processes of a cluster score one data set after the other
def _loaded(load: Callable[..., Scorer], *arguments: Any) -> Scorer:
    return load(*arguments)


def _changed(
    source: RolloutReader, scorer: Scorer, options: Options, numbers: range
) -> Iterator[Group]:
    """Yields the groups of these numbers, in order, with the log-probs of their tokens."""
    for start in range(0, len(numbers), GROUPS_AT_ONCE):
        batch = numbers[start : start + GROUPS_AT_ONCE]
        groups = [_prepared(source, number, scorer, options) for number in batch]
        for temperature, items in itertools.groupby(
            groups, lambda group: options.temperature or group.temperature
        ):
            alike = list(items)
            for group, scores in zip(alike, scorer.score(alike, temperature), strict=True):
                yield _with_scores(group, scores, scorer, options)


def _prepared(source: RolloutReader, number: int, scorer: Scorer, options: Options) -> Group:
    """Returns a group ready to be scored."""
    stored = source[number]
    group = read_tokenised(source, number, scorer.tokenizer)
    who = f"group {group.group_id} of {source.folder}"
    field = FIELDS[options.role]
    if getattr(stored, field) is not None and not options.replace:
        raise DataError(
            f"{who} has {field} already: replace them with --replace, or score as another role with"
            " --as"
        )
    lost = stored.behavior_logprobs is not None and group.behavior_logprobs is None
    if options.role != "behavior" and lost:
        raise DataError(
            f"{who} has log-probs of another tokenizer's tokens, which {options.role} log-probs of"
            " this policy would lie beside: take a policy with that tokenizer"
        )
    if not (options.temperature or group.temperature):
        raise DataError(
            f"{who} was sampled greedily (temperature 0), which leaves no log-probs: give the"
            " temperature with --temperature"
        )
    if group.lengths.min() < 1:
        raise DataError(f"{who} has an empty completion: leave it out with grre rollouts filter")
    longest = len(group.prompt_tokens) + int(group.lengths.max())
    largest = max(group.tokens.max(), group.prompt_tokens.max(initial=0))
    if longest > scorer.max_positions or largest >= scorer.vocab_size:
        raise DataError(
            f"{who} has {longest} tokens with its prompt, up to token {largest}, and the model"
            f" takes {scorer.max_positions}, up to token {scorer.vocab_size - 1}: leave the group"
            " out with grre rollouts filter, or take a policy that has its tokens"
        )
    return group


def _with_scores(
    group: Group, scores: Float[np.ndarray, " tokens"], scorer: Scorer, options: Options
) -> Group:
    changed: dict[str, Any] = {FIELDS[options.role]: scores}
    if options.role == "behavior":
        changed |= {"sampling_logprobs": None, "policy_logprobs": None}
        changed["logprob_dtype"] = scorer.dtype
        if options.temperature not in (None, group.temperature):
            changed["temperature"] = options.temperature
            changed["extra"] = group.extra | {"sampled_temperature": group.temperature}
    return dataclasses.replace(group, **changed)


def reverify(
    folder: str | Path,
    output: str | Path,
    judge: InProcess,
    described: dict[str, Any],
) -> int:
    """Copies a rollout folder with the rewards and components that another verifier gives.

    Args:
        folder: the rollout folder. The verifier gets each group's question id, prompt and answer,
            and its completions' texts.
        output: the new folder, or one that an interrupted call with the same arguments began.
        judge: the verifier.
        described: JSON fields for the copies' history; `reward` also becomes the data sets'.

    Returns:
        Number of completions whose reward changed, of those that this call judged.

    Raises:
        UsageError: the output holds something else.
        DataError: the folder is empty or damaged.
    """
    source = rollouts.read(folder)
    changes = 0

    def changed(numbers: range) -> Iterator[Group]:
        nonlocal changes
        for start in range(0, len(numbers), GROUPS_AT_ONCE):
            groups = [source[number] for number in numbers[start : start + GROUPS_AT_ONCE]]
            judgements = judge(
                [(Question(g.question_id, g.prompt, g.answer), g.texts) for g in groups]
            )
            for group, judged in zip(groups, judgements, strict=True):
                now = _with_verdicts(group, judged)
                same = np.isclose(group.rewards, now.rewards, rtol=0, atol=0, equal_nan=True)
                changes += int((~same).sum())
                yield now

    step = {"operation": "reverify"} | described
    derive(source, output, changed, step, {"reward": described["reward"]})
    return changes


def _with_verdicts(group: Group, judged: Judged) -> Group:
    extra = dict(group.extra)
    for name in (FIELD, REASONS, FAILED_REWARD):
        extra.pop(name, None)
    return dataclasses.replace(
        group, rewards=judged.rewards, components=judged.components, extra=extra | judged.extra
    )
