"""Advantages: from the rewards of a group to the advantage of each of its responses, and shaping
of the data before that.

Conventions shared by all of them (the REC paper's section on degenerate groups):
- "all rewards equal" is decided by max = min, never by r - mean(r) = 0; such a group gets exactly 0
  from every mean baseline, and is never divided by a std;
- a group of one is such a group; `singleton_baseline="none"` takes 0 as its baseline instead, so
  that its advantage is its reward;
- padding responses (negative group id) get exactly 0 whatever their reward is, NaN included.
Rewards are first shifted by their group's smallest, which changes no advantage but keeps precision
when a large constant has been added to all of them.

RED-Drop is of "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm"
(https://arxiv.org/abs/2509.24203); dropping groups of equal rewards and penalising overlong
responses are DAPO's (https://arxiv.org/abs/2503.14476). Advantages are data: nothing is
differentiated through them.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from grre_jax.objectives.batch import Flags, Groups
from grre_jax.objectives.inputs import Responses, RewardInputs, Scalar, ShapedData
from grre_jax.objectives.objective import (
    Hyperparameter,
    Order,
    advantage,
    positive,
    returns,
    shaping,
    share,
)


def _about_baseline(x: RewardInputs, advantages: Responses) -> Responses:
    """Sets the advantages of equal rewards, of groups of one and of padding."""
    # Groups of one are alike too, so that this precedes their own rule.
    advantages = jnp.where(x.groups.alike(x.rewards), 0, advantages)
    if x.objective.singleton_baseline == "none":
        advantages = jnp.where(x.groups.sizes == 1, x.rewards, advantages)
    return jnp.where(x.groups.live, advantages, 0)


def _std(deviations: Responses, groups: Groups, sample: bool) -> Responses:
    """Returns [responses] the standard deviation of each response's group."""
    freedom = jnp.maximum(groups.sizes - 1 if sample else groups.sizes, 1).astype(deviations.dtype)
    return jnp.sqrt(groups.sum(deviations**2) / freedom)


def group_std_advantages(x: RewardInputs, sample: bool) -> Responses:
    """Computes A_i = (r_i - mean(r)) / (std(r) + epsilon), DeepSeekMath's GRPO
    (https://arxiv.org/abs/2402.03300).

    Args:
        x: rewards, groups, and std_epsilon: 1e-6 in the REC paper's code and verl, 1e-4 in TRL.
        sample: False divides the squares by K (population), True by K - 1 (sample, as TRL and
            verl).

    Returns:
        [responses] advantages; one that is the reward is divided by nothing.
    """
    deviations = group_mean(x)
    std = _std(deviations, x.groups, sample)
    scaled = deviations / (std + x.hyperparameters["std_epsilon"])
    # Deviations of equal rewards are 0; that of a group of one may be its reward, which has no std.
    return jnp.where(x.groups.alike(x.rewards), deviations, scaled)


def _log_mean_exp(x: RewardInputs, tau: Scalar) -> Responses:
    """Computes A_i = r_i - tau log mean_j exp(r_j / tau), the OPMD baseline of Trinity-RFT
    (https://arxiv.org/abs/2505.17826), which goes from the mean (tau -> inf) to the largest reward
    (tau -> 0).
    """
    below = jnp.where(
        x.groups.live, x.rewards - x.groups.max(x.rewards), 0
    )  # never positive: exp cannot overflow
    advantages = below - tau * jnp.log(x.groups.mean(jnp.exp(below / tau)))
    return _about_baseline(x, advantages)


def _uniform_by_response(key: PRNGKeyArray, responses: int) -> Responses:
    """Draws [responses] numbers in [0, 1): of one key, response i draws from `fold_in(key, i)`, so
    that padding the batch changes no draw.
    """
    if key.ndim == 0:
        key = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(responses))
    return jax.vmap(jax.random.uniform)(key)


TAU = positive("tau", "temperature, in units of reward", 1.0)
STD_EPSILON = positive("std_epsilon", "added to the standard deviation of rewards", 1e-6)
BETA = Hyperparameter("beta", "how far the baseline is lowered, in units of reward", 0.1)
BETA_1 = positive("beta_1", "temperature of the optimal value, in units of reward", 0.5)
REWARD_THRESHOLD = Hyperparameter("reward_threshold", "a reward above it counts as positive", 0.0)
MAX_LENGTH = positive("max_length", "longest response, in tokens")
OVERLONG_BUFFER = positive("overlong_buffer", "how many tokens before it the penalty begins")
DISCOUNT = share("discount", "weight of a turn's reward in the return of the turn before it", 1.0)


@advantage
def group_mean(x: RewardInputs) -> Responses:
    """A = r - mean(r)."""
    # Shifted first: beside a large constant float32 loses the digits in which rewards differ.
    centred = x.rewards - x.groups.min(x.rewards)
    return _about_baseline(x, centred - x.groups.mean(centred))


@advantage(hyperparameters=(STD_EPSILON,))
def group_std(x: RewardInputs) -> Responses:
    """A = (r - mean(r)) / (population std(r) + std_epsilon)."""
    return group_std_advantages(x, sample=False)


@advantage(hyperparameters=(STD_EPSILON,))
def group_std_sample(x: RewardInputs) -> Responses:
    """A = (r - mean(r)) / (sample std(r) + std_epsilon)."""
    return group_std_advantages(x, sample=True)


@advantage
def rloo(x: RewardInputs) -> Responses:
    """RLOO (https://arxiv.org/abs/2402.14740): A = r - mean of the others = K / (K - 1) (r -
    mean(r)).
    """
    sizes = x.groups.sizes.astype(x.rewards.dtype)
    return jnp.where(sizes > 1, sizes / jnp.maximum(sizes - 1, 1), 1) * group_mean(x)


@advantage
def opo(x: RewardInputs) -> Responses:
    """OPO (https://arxiv.org/abs/2505.23585): A = r - sum(n r) / sum(n), n the lengths: the
    baseline of least variance for exact on-policy data.

    A group without a token has the plain mean.
    """
    groups = x.groups
    lengths = x.lengths
    total = groups.sum(lengths)
    centred = group_mean(x)
    # r - sum(n r) / sum(n) with c = r - mean(r) in place of both r: the mean cancels.
    weighted = groups.sum(lengths * jnp.where(groups.live, centred, 0)) / jnp.maximum(total, 1)
    return jnp.where(groups.live & ~groups.alike(x.rewards), centred - weighted, centred)


@advantage
def maxrl(x: RewardInputs) -> Responses:
    """MaxRL: A = (r - mean(r)) / mean(r), 0 where the mean is 0: the gradient of the log of a
    group's success rate.

    For rewards that are not negative.
    """
    mean = x.groups.mean(x.rewards)
    advantages = group_mean(x)
    return jnp.where(mean == 0, 0, advantages / jnp.where(mean == 0, 1, mean))


@advantage(hyperparameters=(STD_EPSILON,))
def pass_at_k(x: RewardInputs) -> Responses:
    """Pass@k training (https://arxiv.org/abs/2503.19595): A = (r_max - r_second) / (sample std +
    std_epsilon) for the best response of a group, 0 for all others.

    A group of one, and a tie for the best, get 0.
    """
    rewards = x.rewards
    groups = x.groups
    best = rewards == groups.max(rewards)
    second = groups.max(jnp.where(best, -jnp.inf, rewards))
    alone = groups.sum(best.astype(jnp.int32)) == 1
    std = _std(group_mean(x), groups, sample=True)
    wins = groups.live & best & alone & ~groups.alike(rewards)
    std_epsilon = x.hyperparameters["std_epsilon"]
    # `second` is -inf where all responses of a group are the best.
    return jnp.where(wins, (rewards - jnp.where(wins, second, 0)) / (std + std_epsilon), 0)


@advantage(hyperparameters=(BETA,))
def asymre(x: RewardInputs) -> Responses:
    """A = r - (mean(r) - beta).

    Asymmetric REINFORCE for off-policy RL (https://arxiv.org/abs/2506.20520): lowering the baseline
    by beta adds beta times imitation of the data, so a group of equal rewards gets +beta.
    """
    return jnp.where(x.groups.live, group_mean(x) + x.hyperparameters["beta"], 0)


@advantage(hyperparameters=(TAU,))
def log_mean_exp(x: RewardInputs) -> Responses:
    """A = r - tau log mean exp(r / tau)."""
    return _log_mean_exp(x, x.hyperparameters["tau"])


@advantage(hyperparameters=(TAU,))
def log_mean_exp_leave_one_out(x: RewardInputs) -> Responses:
    """A_i = r_i - tau log mean_{j != i} exp(r_j / tau): Trinity-RFT's baseline without the
    response itself.
    """
    rewards = x.rewards
    groups = x.groups
    tau = x.hyperparameters["tau"]
    segments = groups.segments
    live = groups.live
    # [responses, responses]: row i has the responses that the baseline of i is taken over.
    peers = (
        (segments[:, None] == segments[None, :])
        & live[:, None]
        & live[None, :]
        & ~jnp.eye(rewards.size, dtype=bool)
    )
    highest = jnp.max(jnp.where(peers, rewards[None, :], -jnp.inf), axis=1)
    highest = jnp.where(jnp.isfinite(highest), highest, 0)
    below = jnp.where(peers, rewards[None, :] - highest[:, None], 0)
    mean = jnp.sum(jnp.where(peers, jnp.exp(below / tau), 0), axis=1) / jnp.maximum(
        groups.sizes - 1, 1
    ).astype(rewards.dtype)
    # The mean is 0 only without others (the highest adds exp(0)): that advantage is set below.
    advantages = rewards - highest - tau * jnp.log(jnp.where(mean > 0, mean, 1))
    return _about_baseline(x, advantages)


@advantage(hyperparameters=(BETA_1,))
def optimal_value(x: RewardInputs) -> Responses:
    """A*-PO (https://arxiv.org/abs/2505.20686): A = r - beta_1 log mean exp(r / beta_1)."""
    return _log_mean_exp(x, x.hyperparameters["beta_1"])


@advantage
def reward(x: RewardInputs) -> Responses:
    """A = r."""
    return jnp.where(x.groups.live, x.rewards, 0)


@advantage(name="none")
def nothing(x: RewardInputs) -> Responses:
    """A = 0: of a loss that reads no reward."""
    return jnp.zeros_like(x.rewards)


def _above_threshold(x: RewardInputs) -> Flags:
    return x.groups.live & (x.rewards > x.hyperparameters["reward_threshold"])


@advantage(hyperparameters=(REWARD_THRESHOLD,))
def sign(x: RewardInputs) -> Responses:
    """A = 1 where r > reward_threshold, else -1."""
    signs = jnp.where(x.groups.live, jnp.where(_above_threshold(x), 1, -1), 0)
    return signs.astype(x.rewards.dtype)


@advantage(
    name="positive",
    hyperparameters=(REWARD_THRESHOLD,),
    drops="responses whose reward is at most the threshold",
)
def positives(x: RewardInputs) -> ShapedData:
    """RAFT: A = 1 where r > reward_threshold; the other responses are dropped."""
    chosen = _above_threshold(x)
    return ShapedData(chosen.astype(x.rewards.dtype), x.groups.live & ~chosen)


@advantage(random=True, drops="negatives in excess of the positives, drawn at random in each group")
def red_drop(x: RewardInputs) -> ShapedData:
    """RED-Drop.

    Drops negatives at random until they no longer outnumber the positives
    (https://arxiv.org/abs/2509.24203). A response is positive when r >= mean(r). Where a group has
    more negatives, the extra ones are dropped uniformly at random, and the rest is REINFORCE with
    the mean over the kept. Nothing is dropped from a group of equal rewards; a group of two or more
    always keeps two.
    """
    rewards = x.rewards
    groups = x.groups
    positive = (group_mean(x) >= 0) | (
        rewards == groups.max(rewards)
    )  # a rounded mean may exceed the maximum
    positives = groups.sum(positive.astype(jnp.int32))
    # There are sizes - positives negatives, of which as many stay as there are positives.
    excess = jnp.maximum(groups.sizes - 2 * positives, 0)
    # Within a group, negatives first, in random order: the rank there is the rank among negatives.
    order = jnp.lexsort((_uniform_by_response(x.key, rewards.size), positive, groups.segments))
    position = jnp.zeros_like(order).at[order].set(jnp.arange(rewards.size, dtype=order.dtype))
    rank = position - jax.ops.segment_min(position, groups.segments, rewards.size)[groups.segments]
    dropped = groups.live & ~positive & (rank < excess)
    kept = Groups(segments=groups.segments, live=groups.live & ~dropped)
    return ShapedData(group_mean(replace(x, groups=kept)), dropped)


@shaping(
    hyperparameters=(MAX_LENGTH, OVERLONG_BUFFER), order=(Order("overlong_buffer", "max_length"),)
)
def overlong(x: RewardInputs) -> tuple[Responses, None]:
    """DAPO's soft penalty on length n (https://arxiv.org/abs/2503.14476): adds min(-(n -
    (max_length - overlong_buffer)) / overlong_buffer, 0) to the rewards.
    """
    longest = x.hyperparameters["max_length"]
    buffer = x.hyperparameters["overlong_buffer"]
    return x.rewards + jnp.minimum(-(x.lengths - (longest - buffer)) / buffer, 0), None


@shaping(drops="groups whose rewards are all equal, by the objective itself")
def zero_variance(x: RewardInputs) -> tuple[Responses, Flags]:
    """Drops groups whose rewards are all equal, groups of one included: a mean baseline learns
    nothing from them.
    """
    return x.rewards, x.groups.live & x.groups.alike(x.rewards)


@returns(hyperparameters=(DISCOUNT,), data=("turns",))
def turns(x: RewardInputs) -> Float[Array, "responses turns"]:
    """Returns of turns: G_t = sum over s >= t of discount^(s - t) r_s.

    r of the last turn is what the response's reward has beyond the other turns' rewards. Shaped
    rewards, failures and rewards without turns therefore count, and with discount 1 the first
    turn's return is the response's reward, exactly. An advantage of returns compares each turn with
    the same turn of the group's other responses: G_t less the mean of those that have turn t, as
    the steps of GiGPO (https://arxiv.org/abs/2505.10978) with the turn's number as the state. A
    turn that one response alone has is a group of one.
    """
    here = jnp.isfinite(x.turn_rewards)
    # The turns of a response lie at the front, so that the last one has an absent one behind it.
    more = jnp.pad(here[:, 1:], ((0, 0), (0, 1)))
    earlier = jnp.where(here & more, x.turn_rewards, 0)
    total = x.rewards[:, None]
    rewards = jnp.where(more, earlier, total - jnp.sum(earlier, axis=1, keepdims=True))
    # What discounting takes from the reward that is still to come: nothing, exactly, for 1.
    ahead = jnp.arange(here.shape[1]) - jnp.arange(here.shape[1])[:, None]
    lost = jnp.where(ahead > 0, 1 - x.hyperparameters["discount"] ** jnp.maximum(ahead, 0), 0)
    baseline = jnp.sum(lost * jnp.where(here, rewards, 0)[:, None, :], axis=2)
    # For the first turn 0 is subtracted: with discount 1 its return is the reward to the bit.
    to_come = total - (jnp.cumsum(earlier, axis=1) - earlier)
    return jnp.where(here, to_come - baseline, 0)


def _spread(values: Responses, live: Flags) -> tuple[Responses, Scalar]:
    """Returns values less their mean over the batch's responses, 0 on padding, and their sample
    standard deviation.
    """
    count = jnp.maximum(jnp.sum(live), 1)
    mean = jnp.sum(jnp.where(live, values, 0)) / count
    spread = jnp.where(live, values - mean, 0)
    return spread, jnp.sqrt(jnp.sum(spread**2) / jnp.maximum(count - 1, 1))


@advantage(hyperparameters=(STD_EPSILON,))
def batch_std(x: RewardInputs) -> Responses:
    """A = (r - mean(r)) / (sample std of all rewards of the batch + std_epsilon): TRL's
    scale_rewards="batch".
    """
    deviations = group_mean(x)
    _, std = _spread(x.rewards, x.groups.live)
    std_epsilon = x.hyperparameters["std_epsilon"]
    return jnp.where(x.groups.alike(x.rewards), deviations, deviations / (std + std_epsilon))


@advantage
def gpg(x: RewardInputs) -> Responses:
    """GPG (https://arxiv.org/abs/2504.02546): A = alpha (r - mean(r)), alpha = responses /
    responses whose reward is not zero, of the batch.
    """
    live = x.groups.live.astype(x.rewards.dtype)
    alpha = jnp.sum(live) / jnp.maximum(jnp.sum(live * (x.rewards != 0)), 1)
    return alpha * group_mean(x)


def _whitened(x: RewardInputs, values: Responses) -> Responses:
    """REINFORCE++ (https://arxiv.org/abs/2501.03262): values over the batch's tokens, shifted to
    mean 0 and scaled to variance 1: (v - mean) / sqrt(unbiased variance + 1e-8).

    Every token of a response has its response's value.
    """
    live = x.groups.live
    weights = jnp.where(live, x.lengths, 0).astype(values.dtype)
    tokens = jnp.maximum(jnp.sum(weights), 1)
    smallest = jnp.min(
        jnp.where(live, values, jnp.inf), initial=jnp.inf
    )  # equal values are then exactly 0
    centred = jnp.where(live, values - jnp.where(jnp.isfinite(smallest), smallest, 0), 0)
    centred = jnp.where(live, centred - jnp.sum(weights * centred) / tokens, 0)
    variance = jnp.sum(weights * centred**2) / jnp.maximum(tokens - 1, 1)
    return centred / jnp.sqrt(variance + 1e-8)


@advantage
def whitened(x: RewardInputs) -> Responses:
    """r - mean(r), whitened over the batch's tokens."""
    return _whitened(x, group_mean(x))


@advantage
def whitened_returns(x: RewardInputs) -> Responses:
    """r, whitened over the batch's tokens."""
    return _whitened(x, x.rewards)


def _decoupled(x: RewardInputs) -> Responses:
    """Sums (c - mean(c)) / (sample std(c) + std_epsilon) of a group over the components c of the
    reward. A component that is NaN does not apply to its response, which counts neither in its mean
    nor in its std.
    """
    normalised = []
    for component in x.components:
        groups = Groups(x.groups.segments, x.groups.live & ~jnp.isnan(component))
        of_component = replace(x, rewards=component, groups=groups)
        normalised.append(group_std_advantages(of_component, sample=True))
    return sum(normalised, jnp.zeros_like(x.rewards))


@advantage(hyperparameters=(STD_EPSILON,), of_components=True)
def decoupled(x: RewardInputs) -> Responses:
    """GDPO (https://arxiv.org/abs/2601.05242): each component of the reward standardised in its
    group, and their sum over the batch's responses, as its authors' TRL and TRL itself do.
    """
    spread, std = _spread(_decoupled(x), x.groups.live)
    return spread / (std + x.hyperparameters["std_epsilon"])


@advantage(hyperparameters=(STD_EPSILON,), of_components=True)
def decoupled_whitened(x: RewardInputs) -> Responses:
    """The same, the sum whitened over the batch's tokens, as its authors' verl does."""
    return _whitened(x, _decoupled(x))
