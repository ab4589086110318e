"""A batch of a tiny run, sampled, rewarded and packed inside a graph.

The pieces are the project's own: the sampler's programs, the task's questions and rewards, the
train step's batch layout. Unlike in a run they are traced into one program, so a completion has as
many columns as its limit and a row is a prompt with one completion.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from grre_jax.models import ModelConfig, Transformer
from grre_jax.sampling import SamplingDistribution, SamplingParams, prepared
from grre_jax.sampling.decoding import engine
from grre_jax.sampling.decoding.slots import NONE, SCORES, Shape
from grre_jax.sampling.prompt_batch import make_prompt_batch
from grre_jax.tasks import build
from grre_jax.training.data.pack import PackedBatch
from research.in_graph.tasks import STUDY_TASKS

STREAM = 1 << 16  # positions of the question stream that belong to one seed


@dataclasses.dataclass(frozen=True)
class Scale:
    """The sizes of a tiny run, which its compiled program depends on.

    Args:
        task_name: of `STUDY_TASKS`.
        task_options: (name, value) of options in which the task differs from it.
        hidden_size, intermediate_size, num_layers, num_heads: of the model.
        groups: prompts per batch.
        samples: completions per prompt, K.
        questions: held-out questions of an evaluation, one completion each.
        every: training steps between two evaluations.
        imitation_steps: of a warm start.
    """

    task_name: str = "arithmetic"
    task_options: tuple[tuple[str, Any], ...] = ()
    hidden_size: int = 64
    intermediate_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    groups: int = 8
    samples: int = 8
    questions: int = 256
    every: int = 20
    imitation_steps: int = 1000

    @cached_property
    def task(self) -> Any:
        """Task of the run, whose reward can be traced."""
        name, options = self.named_task
        return build(name, **options)

    @property
    def named_task(self) -> tuple[str, dict[str, Any]]:
        """Name of the task, as of `tasks.build`, and its options."""
        study = STUDY_TASKS[self.task_name]
        return study.task, {**study.options, **dict(self.task_options)}

    @cached_property
    def model_config(self) -> ModelConfig:
        """The model's shape."""
        return ModelConfig(
            vocab_size=self.task.tokenizer.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.hidden_size // self.num_heads,
            eos_ids=self.task.tokenizer.eos_ids,
        )

    @cached_property
    def graph(self) -> Any:
        """The static half of the model."""
        return nnx.split(nnx.eval_shape(lambda: Transformer(self.model_config, rngs=nnx.Rngs(0))))[
            0
        ]

    def parameters(self, key: Array) -> Any:
        """Returns initial parameters."""
        return nnx.to_pure_dict(nnx.state(Transformer(self.model_config, rngs=nnx.Rngs(key))))


def verdicts(
    task: Any,
    prompts: Int[Array, "responses prompt"],
    tokens: Int[Array, "responses time"],
    lengths: Int[Array, " responses"],
) -> Float[Array, " responses"]:
    """Returns the rewards of the task's `verify`, 0 or 1, for token arrays.

    Args:
        task: `tasks.datasets.arithmetic.Arithmetic`.
        prompts: of each response.
        tokens: of the responses; those from a response's length on are not read.
        lengths: of the responses, the end token included.
    """
    answer = task.steps(prompts)[-1][-1]
    ends = (tokens == task.tokenizer.eos_ids[0]) & (np.arange(tokens.shape[1]) < lengths[:, None])
    first_end = jnp.argmax(ends, axis=1)
    before = jnp.take_along_axis(tokens, jnp.maximum(first_end - 1, 0)[:, None], axis=1)[:, 0]
    return (ends.any(axis=1) & (first_end > 0) & (before == answer)).astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Drawn:
    """A batch as it was sampled. Responses lie group by group.

    Attributes:
        prompts: [groups, prompt tokens].
        tokens: [responses, T]; 0 from its end on.
        lengths: [responses], the end token included.
        logprobs: [responses, T] behaviour log-probs; 0 from its end on.
        rewards: [responses].
        version: [] of the policy that sampled.
    """

    prompts: Int[Array, "groups prompt"]
    tokens: Int[Array, "responses time"]
    lengths: Int[Array, " responses"]
    logprobs: Float[Array, "responses time"]
    rewards: Float[Array, " responses"]
    version: Int[Array, ""]


def draw(
    scale: Scale,
    params: Any,
    prompts: Int[Array, "groups prompt"],
    samples: int,
    key: Array,
    positions: Int[Array, " groups"],
    version: Int[Array, ""] | int = 0,
    temperature: Float[Array, ""] | float = 1.0,
) -> Drawn:
    """Samples completions, drawn as by `sampling.sample`, and rewards them.

    Args:
        scale: the sizes.
        params: of the policy, as `Scale.parameters` lays them out.
        prompts, samples: [groups, prompt] token ids; completions per prompt.
        key: of the sampler.
        positions: [groups] in the prompt stream, part of the address of each draw.
        version: of the policy, for the result.
        temperature: of the sampler; 0 is greedy decoding.
    """
    groups, prompt_tokens = prompts.shape
    limit = scale.task.answer_length
    weights = prepared(nnx.merge(scale.graph, params))
    given = jnp.full(groups, prompt_tokens, jnp.int32)
    batch = make_prompt_batch(
        scale.model_config,
        prompts,
        samples,
        limit,
        key,
        prompt_lengths=given,
        positions=positions,
    )
    shape = Shape(
        shards=1,
        decode_slots=groups * samples,
        prompt_slots=groups,
        samples=samples,
        steps=limit - 1,
        resident=True,
        prompt_tokens=prompt_tokens,
        cache_dtype=str(weights.dtype),
    )
    every_slot = np.arange(groups, dtype=np.int32)[None]
    slots, padded = batch.prompt_slots(every_slot, 0)
    state = engine.new_state(shape, weights, limit)
    rotary = engine.prompt_rotary(scale.model_config, prompt_tokens)
    state, _ = engine.prefill(shape, weights, state, rotary, slots, padded, every_slot)
    distribution = SamplingDistribution.of(SamplingParams())
    distribution = distribution._replace(temperature=jnp.float32(temperature))
    settings = distribution, batch.eos, np.int32(limit)
    host = np.zeros(1, np.int32), np.int32(0)  # no prompts wait there, and it resizes nothing
    state, first, _ = engine.advance(shape, weights, state, *settings, *host, True)
    _, others, _ = engine.advance(shape, weights, state, *settings, *host)
    # If all are resident, slot = group x samples + sample, and a slot's columns are its own steps.
    integers, scores = (
        jnp.concatenate([x, y])[:, :, 0]
        for x, y in ((first.integers, others.integers), (first.scores, others.scores))
    )
    live = (integers[:, 1] != NONE).T
    tokens = jnp.where(live, integers[:, 0].T, 0)
    logprobs = jnp.where(live, scores[:, SCORES.index("behavior")].T, 0.0)
    lengths = live.sum(1, dtype=jnp.int32)
    rewards = verdicts(scale.task, jnp.repeat(prompts, samples, axis=0), tokens, lengths)
    return Drawn(prompts, tokens, lengths, logprobs, rewards, jnp.asarray(version, jnp.int32))


def pack(drawn: Drawn, learner_version: Int[Array, ""] | int = 0) -> PackedBatch:
    """Returns the batch as the train step takes it: one micro-batch, a row per response behind its
    prompt.

    Rows do not share a prompt. At these lengths the pairs of responses that attention would mask
    cost more than the prompt's repetition.
    """
    (groups, prompt), (responses, time) = drawn.prompts.shape, drawn.tokens.shape
    prompts = jnp.repeat(drawn.prompts, responses // groups, axis=0)
    column = np.arange(prompt + time)

    def rows(x: Array, before: Any) -> Array:
        """[1, responses, columns] of responses' columns, behind those of their prompts."""
        before = jnp.broadcast_to(before, (responses, prompt))
        return jnp.concatenate([before, x], axis=1)[None].astype(x.dtype)

    columns = {
        "positions": column,
        "segment_ids": np.where(column < prompt, 1, 2),
        "prefix_ids": np.ones(column.size),
        "sources": np.maximum(column - 1, 0),
    }
    columns = {
        name: jnp.broadcast_to(jnp.asarray(x, jnp.int32), (1, responses, x.size))
        for name, x in columns.items()
    }
    return PackedBatch(
        tokens=rows(drawn.tokens, prompts),
        **columns,
        mask=rows(jnp.arange(time) < drawn.lengths[:, None], False),
        response_ids=rows(
            jnp.broadcast_to(jnp.arange(responses, dtype=jnp.int32)[:, None], (responses, time)), 0
        ),
        old_logprobs=rows(drawn.logprobs, 0.0),
        rewards=drawn.rewards,
        group_ids=jnp.repeat(jnp.arange(groups, dtype=jnp.int32), responses // groups),
        staleness=jnp.broadcast_to(
            (learner_version - drawn.version).astype(jnp.float32), (responses,)
        ),
    )
