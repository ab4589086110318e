"""The calls of the sampler that a run makes: their questions, prompts and decode slots.

Explorers make these calls; `grre compile` and `grre explain` predict them.
"""

import dataclasses
import logging
import os
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from grre_jax.errors import DataError
from grre_jax.models.config import ModelConfig
from grre_jax.parallel import processes
from grre_jax.sampling.call import call_shape
from grre_jax.sampling.decoding.slots import Shape
from grre_jax.sampling.prompt_batch import bucket
from grre_jax.sampling_params import SamplingConfig, SamplingParams
from grre_jax.tasks import Question, Task, Tokenizer
from grre_jax.tasks.task import is_environment, questions
from grre_jax.training import build
from grre_jax.training.config.run import Config

_log = logging.getLogger(__name__)

# Prompts of a call if sampling.prompts_per_call is 0. What is sealed together bounds the groups
# that a crash can lose and that memory holds.
MOST_PROMPTS = 2048
# Copies of the parameters that training keeps: theirs, those that the run started from, and two
# moments.
STATE_COPIES = 4
MOST_SKIPPED = 10_000  # overlong questions after each other
# Copies of the float32 logits that a draw holds at once.
LOGIT_COPIES = 4
# Prompts held per completion decoded, times the completions of a prompt: `call.call_shape`.
HELD_PROMPTS = 4
# Completions decoded side by side on a device whose memory is not known.
ROWS_WITHOUT_LIMIT = 256
# Share of a device's memory that is planned with; the rest is for programs and fragmentation.
USABLE = 0.9


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of the sampler.

    Attributes:
        prompts: questions of the call, before padding to as many on every device.
        settings: sampling settings.
        rows: completions decoded side by side on each device that rows are cut over, if
            sampling.max_concurrent is 0.
    """

    prompts: int
    settings: SamplingConfig
    rows: int = ROWS_WITHOUT_LIMIT

    def filled(self, devices: int) -> int:
        """Returns the prompts that are computed: `prompts`, or the next multiple of the devices
        that rows are cut over.
        """
        return self.prompts + -self.prompts % devices

    def waves(self, shape: Shape) -> int:
        """Returns how often every decode slot is filled if all completions reach their limit: once,
        unless slots are refilled.
        """
        completions = self.filled(shape.shards) // shape.shards * self.settings.group_size
        return -(-completions // shape.decode_slots)

    def fills(self, shape: Shape) -> int:
        """Returns how often prompts are prefilled: once, unless prompt slots are refilled."""
        return -(-(self.filled(shape.shards) // shape.shards) // shape.prefill_batch)

    def shape(self, devices: int, activations: str) -> Shape:
        """Returns the sizes that the sampler's programs are compiled for.

        Args:
            devices: number of devices that rows are cut over.
            activations: dtype of the activations, and of keys and values if sampling.cache_dtype is
                empty.
        """
        settings = self.settings
        return call_shape(
            shards=devices,
            prompts=self.filled(devices) // devices,
            samples=settings.group_size,
            max_concurrent=settings.max_concurrent or self.rows * devices,
            max_new_tokens=settings.max_new_tokens,
            prompt_tokens=settings.max_prompt_tokens,
            cache_dtype=settings.cache_dtype or activations,
        )


def fitting(
    config: Config,
    settings: SamplingConfig,
    model: ModelConfig,
    mesh: Mesh,
    capacity: float | None = None,
) -> int:
    """Returns the completions that a device, with those that share its rows, decodes side by side
    if sampling.max_concurrent is 0: as many as fit beside the weights and the train state.

    It depends on the configuration and the devices' memory alone, so that it is the same in a
    resumed run and in a run split over processes.

    Args:
        config: has the dtypes, and whether low-rank terms alone are trained.
        settings: of the call.
        model: shape of the model.
        mesh: that samples.
        capacity: bytes of a device that can be used; of this machine's if None.
    """
    if capacity is None:
        # In MiB, since the processes exchange int32; the least, so that all make the same calls.
        capacity = USABLE * 2**20 * processes.gather_ints((device_bytes() or 0) >> 20).min()
    if not capacity:
        return ROWS_WITHOUT_LIMIT
    dtype, compute = build.dtypes(config.model)
    activations = str(compute or dtype)
    tensor = mesh.shape["tensor"]
    expert = mesh.shape["expert"]
    row = row_bytes(
        model,
        samples=settings.group_size,
        prompt_tokens=settings.max_prompt_tokens,
        max_new_tokens=settings.max_new_tokens,
        cache_dtype=settings.cache_dtype or activations,
        tensor=tensor,
    )
    read = weights_bytes(model, activations, tensor, expert)
    # Of a model with low-rank terms the copies of its other parameters are one.
    copies = 1 if build.lora_config(config.model) else STATE_COPIES
    size = model.parameters_on(expert) * dtype.itemsize * copies
    # The axes data and sequence do not cut parameters.
    free = capacity - size / (mesh.shape["fsdp"] * tensor) - read
    return fitting_rows(free, row, settings.group_size)


def call_of(settings: SamplingConfig, questions: int) -> Call:
    """Returns the sampler call for `questions` prompts: at most `sampling.prompts_per_call` per
    call, or MOST_PROMPTS if that is 0. A shorter last call is padded to the same shape.

    The call is the same on any number of devices, so that all explorers of a run cut its questions
    into the same calls.
    """
    prompts = max(min(settings.prompts_per_call or MOST_PROMPTS, questions), 1)
    return Call(prompts, settings)


def evaluation_settings(config: Config) -> SamplingConfig:
    """Returns the settings of an evaluation: its own, and sampling's for the others, but weights
    that are not rounded: the policy that is trained is measured. No routes are recorded.
    """
    evaluation = config.evaluation
    settings = {name: getattr(evaluation, name) for name in SamplingParams.names()}
    settings["max_new_tokens"] = evaluation.max_new_tokens or config.sampling.max_new_tokens
    settings |= {"group_size": evaluation.num_samples, "record_routes": False}
    return dataclasses.replace(config.sampling, **settings)


def training_call(config: Config) -> Call | None:
    """Returns the largest call that samples a run's own data; None if all data is stored, or no
    step is taken.

    A policy version samples all its positions together. Versions may have different numbers of
    them: an interval that the run's end cuts short has fewer.
    """
    steps = config.training.steps
    if not (config.samples and steps):
        return None
    sampled = (len(config.schedule.sampled(version, steps)) for version in range(steps))
    return call_of(config.sampling, max(sampled))


def evaluation_call(config: Config) -> Call | None:
    """Returns the call of held-out questions that are sampled; None if there are no questions."""
    questions = config.evaluation.questions
    return call_of(evaluation_settings(config), questions) if questions else None


# ---- prompts within the limits of a run


def fitting_questions(
    task: Task, tokenizer: Tokenizer, limit: int, positions: Sequence[int]
) -> list[Question]:
    """Returns the question of each position: the first from there on whose prompt is within the
    limit.

    It depends on the task, the tokenizer and the limit alone, so that every process and every
    resumed run has the same questions.

    Args:
        task: has the questions.
        tokenizer: encodes their prompts.
        limit: longest prompt, in tokens.
        positions: in the prompt stream.

    Raises:
        DataError: MOST_SKIPPED prompts after each other are longer.
    """
    result = []
    for position, question in zip(positions, questions(task, positions), strict=True):
        candidate = position
        while len(tokenizer.encode_prompt(question)) > limit:
            # Whether or not the next position has this question too: positions do not depend on
            # each other.
            candidate += 1
            if candidate == position + MOST_SKIPPED:
                raise DataError(
                    f"task {task.name}: the {MOST_SKIPPED:,} prompts from position {position} on"
                    f" are over sampling.max_prompt_tokens = {limit}. Raise the limit."
                )
            question = task.question(candidate)
        result.append(question)
    return result


def evaluation_questions(parts: build.Parts) -> list[Question]:
    """Returns the questions of the run's evaluation, without those over the limit of prompts.
    Prompts of environments are measured when they are played.

    Raises:
        DataError: all prompts are over the limit.
    """
    count = parts.config.evaluation.questions
    limit = parts.config.sampling.max_prompt_tokens
    held_out = list(parts.task.evaluation(count)) if count else []
    if is_environment(parts.task):
        return held_out
    kept = [q for q in held_out if len(parts.tokenizer.encode_prompt(q)) <= limit]
    if held_out and not kept:
        raise DataError(
            f"task {parts.task.name}: all {count} evaluation questions are over"
            f" sampling.max_prompt_tokens = {limit}. Raise the limit."
        )
    report_overlong(len(held_out) - len(kept), limit)
    return kept


def report_overlong(count: int, limit: int, field: str = "sampling.max_prompt_tokens") -> None:
    """Logs, in the first process, how many questions are left out.

    Args:
        count: of the questions.
        limit: largest number of tokens of their prompts or demonstrations.
        field: of the limit.
    """
    if count and processes.is_first():
        _log.warning("%d questions are over %s = %d; they are left out", count, field, limit)


def check_prompt(question_id: str, tokens: Sequence[int], limit: int, vocab: int) -> None:
    """Checks a prompt.

    Args:
        question_id: its question's.
        tokens: its ids.
        limit: longest prompt, in tokens.
        vocab: tokens of the model's vocabulary.

    Raises:
        DataError: the prompt is empty, longer than the limit, or has a token outside the
            vocabulary.
    """
    if not 1 <= len(tokens) <= limit:
        raise DataError(
            f"prompt {question_id}: expected 1 to {limit} tokens (sampling.max_prompt_tokens), got"
            f" {len(tokens)}"
        )
    if max(tokens) >= vocab:
        raise DataError(
            f"prompt {question_id}: expected tokens below {vocab}, the model's, got token"
            f" {max(tokens)}"
        )


# ---- memory of a call by arithmetic: completions that fit a device side by side


def weights_bytes(model: ModelConfig, dtype: str, tensor: int, expert: int = 1) -> float:
    """Bytes on a device of the weights as decoding reads them: whole but along `tensor` and
    `expert`.

    Args:
        model: shape of the model.
        dtype: of the matrices.
        tensor: devices that heads, hidden units and the vocabulary are cut over.
        expert: devices that experts are cut over.
    """
    # Only layers and head are copied for decoding; an embedding of its own stays the model's.
    embedding = 0 if model.tie_embeddings else model.vocab_size * model.hidden_size
    return (model.parameters_on(expert) - embedding) * _size(dtype) / tensor


def token_bytes(model: ModelConfig, cache_dtype: str, tensor: int) -> float:
    """Bytes on a device of the keys and values of one token."""
    # Heads that the axis does not divide stay whole (`parallel.mesh.spec`).
    cut = tensor if model.num_kv_heads % tensor == 0 else 1
    heads = model.num_kv_heads / cut
    return 2 * model.num_layers * heads * model.head_dim * _size(cache_dtype)


def row_bytes(
    model: ModelConfig,
    *,
    samples: int,
    prompt_tokens: int,
    max_new_tokens: int,
    cache_dtype: str,
    tensor: int,
) -> float:
    """Bytes on a device of one completion at its limit: its cache, its part of its prompts' and its
    logits.
    """
    held = HELD_PROMPTS / samples if samples > 1 else 1.25  # `call_shape` adds a quarter
    columns = bucket(max_new_tokens) + held * prompt_tokens
    logits = LOGIT_COPIES * 4 * model.vocab_size / tensor
    return token_bytes(model, cache_dtype, tensor) * columns + logits


def fitting_rows(free: float, row: float, samples: int) -> int:
    """Returns the completions that fit, a multiple of `samples` where that many fit; at least 1."""
    rows = max(int(free / row), 1)
    return rows // samples * samples or rows


def device_bytes() -> int | None:
    """Returns the memory of this process's smallest device that JAX may use; of a CPU half of the
    machine's, divided among its devices. None if not known.
    """
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return machine // 2 // len(devices)
    stats = [device.memory_stats() or {} for device in devices]
    return min((each.get("bytes_limit", 0) for each in stats), default=0) or None


def _size(dtype: str) -> int:
    return jax.numpy.dtype(dtype).itemsize
