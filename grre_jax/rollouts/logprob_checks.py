"""Checks of stored log-probs that need no policy: values that no policy can have given."""

import numpy as np
from jaxtyping import Bool, Float

from grre_jax.rollouts.schema import LOGPROB_FIELDS, Group

# Nats. Of n tokens drawn from q over V tokens, P(mean of -log q >= m) <= exp(-n (m - log V)), by
# Markov's inequality, as 1/q has the mean V. Below these bounds it is under 1e-12 for V = e^14.
LARGEST_ENTROPY = 14.0  # log of a vocabulary of a million tokens
SURPRISE = 28.0  # -log of 1e-12
LEAST_MEAN = -20.0  # texts of other models, scored under a policy, may lie below its entropy
LEAST_TOKENS = 16  # fewer say nothing about values that are all alike
ROUNDING = 0.02  # nats by which log-probs of the same logits may differ: two bfloat16 sums


class Checks:
    """Checks of the log-probs of groups, which are added one at a time.

    Each problem is reported once, with the number of groups that have it and the first of them.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}
        self._tokens = 0
        self._range = [np.inf, -np.inf]

    def add(self, group: Group) -> None:
        """Takes in a group."""
        generated = group.mask != 0
        for name in LOGPROB_FIELDS:
            values = getattr(group, name)
            if values is None:
                continue
            wrong = values[generated & ~(np.isfinite(values) & (values <= 1e-3))]
            if len(wrong):
                self._note(
                    f"{name} are not log-probs: they hold values such as {wrong[0]:g}, where they"
                    " are finite and at most 0",
                    group,
                    kind=name,
                )
        values = group.behavior_logprobs
        if values is None or not generated.any() or not np.isfinite(values[generated]).all():
            return
        own = values[generated]
        self._tokens += own.size
        self._range = [min(self._range[0], float(own.min())), max(self._range[1], float(own.max()))]
        if own.mean() < min(LEAST_MEAN, -LARGEST_ENTROPY - SURPRISE / own.size):
            self._note(
                f"behavior_logprobs have a mean of {own.mean():.3g} nats a token, and a policy's"
                " own samples have at least minus the logarithm of its vocabulary (-14 for a"
                " million tokens)",
                group,
                kind="mean",
            )
        self._compare(group, own, generated)

    def _compare(
        self, group: Group, own: Float[np.ndarray, " tokens"], generated: Bool[np.ndarray, " mask"]
    ) -> None:
        """Holds the behaviour log-probs against the sampler's others, which differ from them by
        temperature and truncation alone.
        """
        if group.policy_logprobs is not None and group.temperature > 0:
            apart = np.abs(own - group.policy_logprobs[generated])
            enough = own.size >= LEAST_TOKENS and own.any()
            if group.temperature == 1 and apart.max() > ROUNDING:
                self._note(
                    "behavior_logprobs are of another temperature than the declared 1: they differ"
                    " from policy_logprobs",
                    group,
                )
            if group.temperature != 1 and enough and not apart.any():
                self._note(
                    f"behavior_logprobs are declared to be of temperature {group.temperature:g} and"
                    " equal policy_logprobs, which are of 1",
                    group,
                    kind="unscaled",
                )
        if group.sampling_logprobs is not None:
            gained = group.sampling_logprobs[generated] - own
            if not group.truncated and gained.max() > ROUNDING:
                self._note(
                    "sampling_logprobs are of a truncated distribution, and no top_k, top_p or"
                    " min_p is declared",
                    group,
                )
            if gained.min() < -ROUNDING:
                self._note(
                    "behavior_logprobs are above sampling_logprobs, as if truncation made a token"
                    " that it kept less likely",
                    group,
                )

    def _note(self, problem: str, group: Group, kind: str = "") -> None:
        self._found.setdefault(kind or problem, [problem]).append(group.group_id)

    def problems(self) -> list[str]:
        """Returns the problems, one sentence each, with the fix."""
        found = [
            f"{problem} (in {len(groups):,} groups, the first {groups[0]}); compute them again with"
            " `grre rollouts rescore --replace`"
            for problem, *groups in self._found.values()
        ]
        low, high = self._range
        if self._tokens >= LEAST_TOKENS and low == high:
            found.append(
                f"behavior_logprobs are {low:g} for all {self._tokens:,} tokens, as if they were"
                " never computed: compute them again with `grre rollouts rescore --replace`"
            )
        return found
