"""A whole run of reinforcement learning as one compiled program: sample, reward, advantage,
update, in one `lax.scan`.

The values that differ between runs are traced: the objective's numbers, the learning rate, the
regime, the seed and the policy to start from. Runs whose objectives have one structure therefore
share a compilation, one after the other on a CPU and side by side under `jax.vmap` on an
accelerator.

The regimes need no past parameters but one: the sampler's own copy, refreshed every `interval`
steps. Where it runs ahead of the learner its batches wait in a ring, and a batch that is trained on
again stays in it.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from grre_jax.config import Regime
from grre_jax.models.logprobs import token_logprobs
from grre_jax.objectives import Objective, padded_batch, policy_loss, shape_data
from grre_jax.random_streams import Purpose, run_key
from grre_jax.training.data.pack import PackedBatch
from grre_jax.training.optimizer import OptimizerConfig, make_optimizer
from research.in_graph.batch import STREAM, Drawn, Scale, draw, pack

NEVER = 1 << 30
READINGS = (  # of every step
    *("reward", "response_length", "entropy", "clip_fraction", "grad_norm"),
    "effective_sample_size",
)
CHECKED = ("accuracy", "greedy_accuracy", "length", "kl")  # of every evaluation
SAMPLES = 8  # completions of a question of which pass_at_8 says that one is right


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Schedule:
    """A regime as four traced numbers.

    Attributes:
        interval: steps between two refreshes of the sampler's weights; `NEVER` offline.
        ahead: batches that the sampler runs ahead of the learner.
        reuse: consecutive steps that a batch is trained on.
        stored: distinct batches of the run, visited over and over; `NEVER` if every batch is
            new.
    """

    interval: Int[Array, ""] | int
    ahead: Int[Array, ""] | int
    reuse: Int[Array, ""] | int
    stored: Int[Array, ""] | int

    @classmethod
    def of(cls, regime: Regime, stored: int = 0) -> Schedule:
        """Returns the schedule of a regime without replay; with `stored`, from that number of
        batches alone (0: no limit).
        """
        interval = NEVER if regime.offline else regime.sync_interval
        return cls(interval, regime.sync_offset + regime.staleness, regime.reuse, stored or NEVER)

    def ring(self) -> int:
        """Returns the number of batches that must be held at once."""
        return self.stored if self.stored < NEVER else -(-self.ahead // self.reuse) + 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
    """The traced values of a run.

    Attributes:
        choice: which of the objectives.
        objectives: from `objectives.algorithm`, of any structure each; only the chosen one acts.
        learning_rate: of every step.
        ess_exponent: power of the responses' effective sample size, as a share of their number,
            that multiplies a step's learning rate.
        schedule: the regime.
        seed: of questions, draws and data shaping.
        start: parameters to begin with, also the reference policy.
    """

    choice: Int[Array, ""] | int
    objectives: tuple[Objective, ...]
    learning_rate: Float[Array, ""] | float
    ess_exponent: Float[Array, ""] | float
    schedule: Schedule
    seed: Int[Array, ""] | int
    start: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Curves:
    """The results of a run.

    Attributes:
        steps: by name of `READINGS`, [steps] of the batch trained on.
        versions: [steps] the policy version that sampled that batch.
        checks: by name of `CHECKED`, [steps // every + 1] of the policy before steps 0, every, 2
            every, ... and at the end: share of held-out questions answered right when sampled at
            temperature 1 and when decoded greedily, mean tokens of a sampled answer, and
            KL(policy || start) in nats an answer, estimated on the sampled answers.
        pass_at_8: [] of the policy at the end; see `sampled_accuracy`.
        params: at the end.
    """

    steps: dict[str, Float[Array, " steps"]]
    versions: Int[Array, " steps"]
    checks: dict[str, Float[Array, " checks"]]
    pass_at_8: Float[Array, ""]
    params: Any


def optimizer() -> optax.GradientTransformation:
    """Returns Adam with a clip of the gradient's norm, at a learning rate of 1: a run's own
    multiplies its updates, which are linear in it.
    """
    return make_optimizer(OptimizerConfig(learning_rate=1.0, clip_norm=1.0))


def updated(
    params: Any,
    grads: Any,
    opt_state: Any,
    learning_rate: Any,
    transformation: optax.GradientTransformation,
) -> tuple[Any, Any]:
    """Returns parameters and optimiser state after an update."""
    updates, opt_state = transformation.update(grads, opt_state, params)
    return jax.tree.map(lambda p, u: p + learning_rate * u, params, updates), opt_state


def gradient(
    scale: Scale,
    params: Any,
    start: Any,
    choice: Array,
    menu: tuple[Objective, ...],
    drawn: Drawn,
    version: Array,
    key: Array,
) -> tuple[Any, dict[str, Array]]:
    """Returns the chosen objective's gradient with respect to the parameters, and `READINGS`.

    The model is differentiated once, with the chosen objective's derivatives with respect to the
    log-probs: one more structure costs a few operations per token.

    Args:
        scale: the sizes.
        params, start: of the policy, and of the reference.
        choice: index into `menu`.
        menu: objectives.
        drawn: the batch.
        version: of the policy that trains.
        key: for data shaping that draws.
    """
    batch, (responses, time) = pack(drawn, version), drawn.tokens.shape
    fields = _scored(batch)

    def score(params: Any) -> tuple[Array, Array]:
        pair = token_logprobs(nnx.merge(scale.graph, params), *fields, everything=True)[:2]
        return tuple(x[:, drawn.prompts.shape[1] :].reshape(responses, time) for x in pair)

    logprobs, back, entropy = jax.vjp(score, params, has_aux=True)
    mask, lengths = jnp.arange(time) < drawn.lengths[:, None], drawn.lengths.astype(jnp.float32)
    needed = any("ref_logprobs" in objective.requires for objective in menu)
    reference = score(start)[0] if needed else None

    def derivative(objective: Objective) -> tuple[Array, Array, Array]:
        return _derivative(objective, batch, drawn, logprobs, reference, mask, lengths, key)

    branches = [partial(derivative, objective) for objective in menu]
    dloss, clipped, effective = jax.lax.switch(choice, branches)
    (grads,) = back(dloss)
    entropy = jnp.where(mask, entropy, 0.0).sum() / mask.sum()
    readings = (drawn.rewards.mean(), lengths.mean(), entropy, clipped, optax.global_norm(grads))
    return grads, dict(zip(READINGS, (*readings, effective), strict=True))


def _scored(batch: PackedBatch) -> list[Array]:
    """The fields of the batch's one micro-batch that `token_logprobs` takes."""
    names = (batch.tokens, batch.positions, batch.segment_ids, batch.prefix_ids, batch.sources)
    return [x[0] for x in names]


def _derivative(
    objective: Objective,
    batch: PackedBatch,
    drawn: Drawn,
    logprobs: Float[Array, "responses time"],
    reference: Float[Array, "responses time"] | None,
    mask: Bool[Array, "responses time"],
    lengths: Float[Array, " responses"],
    key: Array,
) -> tuple[Float[Array, "responses time"], Array, Array]:
    """Derivative of an objective's loss with respect to the log-probs, its clip fraction, and the
    responses' effective sample size as a share of their number.
    """
    shaped = shape_data(objective, batch.rewards, batch.group_ids, key=key, lengths=lengths)
    data = padded_batch(
        advantages=shaped.advantages,
        mask=mask,
        groups=batch.group_ids,
        old_logprobs=drawn.logprobs,
        rewards=batch.rewards,
        dropped=shaped.dropped,
        ref_logprobs=reference,
        prox_logprobs=jax.lax.stop_gradient(logprobs),
        staleness=batch.staleness,
    )
    (_, metrics), dloss = jax.value_and_grad(
        lambda x: policy_loss(objective, x, data), has_aux=True
    )(logprobs)
    # Objectives without ratios have none.
    effective = metrics.get("effective_sample_size_responses", jnp.float32(1))
    return dloss, metrics["clip_fraction"], effective


def evaluated(scale: Scale, params: Any, start: Any, key: Array) -> dict[str, Array]:
    """Returns the values of `Curves.checks` of one policy.

    Every evaluation of every run has the same questions; its draws are the key's.
    """
    prompts, positions = _held_out(scale)
    answers = jax.lax.map(
        lambda temperature: draw(scale, params, prompts, 1, key, positions, 0, temperature),
        jnp.array([1.0, 0.0]),
    )
    sampled, greedy = (jax.tree.map(lambda x, i=i: x[i], answers) for i in range(2))
    batch = pack(sampled)
    before = token_logprobs(nnx.merge(scale.graph, start), *_scored(batch))
    kl = jnp.where(batch.mask[0], batch.old_logprobs[0] - before, 0.0).sum() / sampled.lengths.size
    return {
        "accuracy": sampled.rewards.mean(),
        "greedy_accuracy": greedy.rewards.mean(),
        "length": sampled.lengths.astype(jnp.float32).mean(),
        "kl": kl,
    }


def _held_out(scale: Scale) -> tuple[Array, Array]:
    """The questions of every evaluation, and their numbers."""
    prompts = jnp.asarray(scale.task.evaluation_batch(scale.questions))
    return prompts, jnp.arange(prompts.shape[0], dtype=jnp.int32)


def sampled_accuracy(scale: Scale, params: Any, key: Array) -> tuple[Array, Array]:
    """Returns the share of right answers among `SAMPLES` to each held-out question, sampled at
    temperature 1, and pass@8, the share of questions with a right one among them.
    """
    prompts, positions = _held_out(scale)
    rewards = draw(scale, params, prompts, SAMPLES, key, positions).rewards
    return rewards.mean(), rewards.reshape(-1, SAMPLES).max(axis=1).mean()


def run_keys(seed: Array | int) -> tuple[Array, Array, Array]:
    """Returns the keys of a run's completions, of its data shaping and of its evaluations."""
    key = jax.random.fold_in(run_key(0, Purpose.STUDY), seed)
    explore, shape, evaluate = (
        jax.random.fold_in(key, int(purpose))
        for purpose in (Purpose.EXPLORE, Purpose.SHAPE, Purpose.EVALUATE)
    )
    return explore, shape, evaluate


@dataclasses.dataclass(frozen=True)
class _Loop:
    """The steps of a run: what they share, and the body of the scan over them.

    Attributes:
        scale: the sizes.
        steps: training steps.
        ring: batches that are held at once.
        inputs: the traced values.
        explore, shape, evaluate: keys of the run by purpose.
    """

    scale: Scale
    steps: int
    ring: int
    inputs: Inputs
    explore: Array
    shape: Array
    evaluate: Array

    def sampled(self, number: Array, params: Any, version: Array) -> Drawn:
        """Samples batch `number`."""
        scale = self.scale
        positions = self.inputs.seed * STREAM + number * scale.groups + jnp.arange(scale.groups)
        prompts = scale.task.questions_batch(positions.astype(jnp.uint32))
        return draw(scale, params, prompts, scale.samples, self.explore, positions, version)

    def body(self, carry: tuple, t: Array) -> tuple[tuple, tuple]:
        """Computes one step: refreshes the sampler, samples, evaluates and trains, each if it is
        due.
        """
        params, opt_state, sampler, version, batches = carry
        steps, plan = self.steps, self.inputs.schedule
        refresh = (t >= 0) & (t < steps) & (t % plan.interval == 0)
        sampler = jax.tree.map(lambda old, new: jnp.where(refresh, new, old), sampler, params)
        version = jnp.where(refresh, t, version)
        batches = self._filled(batches, sampler, version, t)
        drawn = jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(
                x, t // plan.reuse % plan.stored % self.ring, keepdims=False
            ),
            batches,
        )
        nothing = {name: jnp.float32(0) for name in READINGS}
        checks = jax.lax.cond(
            (t >= 0) & ((t % self.scale.every == 0) | (t == steps)),
            lambda p: evaluated(
                self.scale, p, self.inputs.start, jax.random.fold_in(self.evaluate, t)
            ),
            lambda _: {name: jnp.float32(0) for name in CHECKED},
            params,
        )
        params, opt_state, readings = jax.lax.cond(
            (t >= 0) & (t < steps),
            self._train,
            lambda p, o, *_: (p, o, nothing),
            params,
            opt_state,
            drawn,
            t,
        )
        return (params, opt_state, sampler, version, batches), (readings, drawn.version, checks)

    def _filled(self, batches: Drawn, sampler: Any, version: Array, t: Array) -> Drawn:
        """The ring of batches, with the one that is due at step t."""
        plan = self.inputs.schedule
        due = t + plan.ahead
        number = due // plan.reuse
        wanted = (due >= 0) & (due < self.steps) & (due % plan.reuse == 0) & (number < plan.stored)

        def put(batches: Drawn) -> Drawn:
            new = self.sampled(number, sampler, version)
            return jax.tree.map(
                lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, number % self.ring, 0),
                batches,
                new,
            )

        return jax.lax.cond(wanted, put, lambda same: same, batches)

    def _train(
        self, params: Any, opt_state: Any, drawn: Drawn, t: Array
    ) -> tuple[Any, Any, dict[str, Array]]:
        inputs, key = self.inputs, jax.random.fold_in(self.shape, t)
        menu = (inputs.choice, inputs.objectives)
        grads, readings = gradient(self.scale, params, inputs.start, *menu, drawn, t, key)
        share = jnp.minimum(readings["effective_sample_size"], 1.0)
        rate = inputs.learning_rate * share**inputs.ess_exponent
        return *updated(params, grads, opt_state, rate, optimizer()), readings


def run(scale: Scale, steps: int, fill: int, ring: int, inputs: Inputs) -> Curves:
    """Returns the curves of one run; to be jitted with the first four static (`compiled`), and
    vmapped over `inputs`.

    Args:
        scale: the sizes.
        steps: training steps.
        fill: at least `schedule.ahead`: steps before the first in which the sampler gets ahead.
        ring: at least `schedule.ring()`.
        inputs: the traced values.
    """
    loop = _Loop(scale, steps, ring, inputs, *run_keys(inputs.seed))
    times = jnp.arange(-fill, steps + 1, dtype=jnp.int32)
    held = jax.eval_shape(lambda p: loop.sampled(jnp.int32(0), p, jnp.int32(0)), inputs.start)
    batches = jax.tree.map(lambda x: jnp.zeros((ring, *x.shape), x.dtype), held)
    carry = (inputs.start, optimizer().init(inputs.start), inputs.start, jnp.int32(0), batches)
    (params, *_), (readings, versions, checks) = jax.lax.scan(loop.body, carry, times)
    readings, versions, checks = jax.tree.map(lambda x: x[fill:], (readings, versions, checks))
    checks = jax.tree.map(lambda x: jnp.concatenate([x[:steps][:: scale.every], x[steps:]]), checks)
    readings, versions = jax.tree.map(lambda x: x[:steps], (readings, versions))
    _, solved = sampled_accuracy(scale, params, jax.random.fold_in(loop.evaluate, steps + 1))
    return Curves(readings, versions, checks, solved, params)


@lru_cache(maxsize=64)
def compiled(scale: Scale, steps: int, fill: int, ring: int, width: int) -> Any:
    """Returns `run`, jitted; side by side over the leading axis of its inputs if `width` is not 0.

    Raises:
        ValueError: a run would take questions of the next seed's stretch of the stream.
    """
    if steps * scale.groups > STREAM:
        raise ValueError(
            f"steps * groups must be at most {STREAM}, the questions of a seed, got {steps} *"
            f" {scale.groups}"
        )

    def one(inputs: Inputs) -> Curves:
        return run(scale, steps, fill, ring, inputs)

    return jax.jit(jax.vmap(one) if width else one)
