"""The calls of the sampler that a run makes: their questions, prompts and decode slots.

Explorers make these calls; `grre compile` and `grre explain` predict them.
"""

import dataclasses
import logging
from collections.abc import Sequence

from jax.sharding import Mesh

from grre_jax.errors import DataError
from grre_jax.models.config import ModelConfig
from grre_jax.parallel import processes
from grre_jax.sampling.call import call_shape
from grre_jax.sampling.config import SamplingConfig
from grre_jax.sampling.decoding.slots import Shape
from grre_jax.sampling.memory import (
    ROWS_WITHOUT_LIMIT,
    USABLE,
    device_bytes,
    fitting_rows,
    row_bytes,
    weights_bytes,
)
from grre_jax.sampling_params import SamplingParams
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
    own = {name: getattr(evaluation, name) for name in SamplingParams.names()}
    own["max_new_tokens"] = evaluation.max_new_tokens or config.sampling.max_new_tokens
    own |= {"group_size": evaluation.num_samples, "record_routes": False}
    return dataclasses.replace(config.sampling, **own)


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
    found = []
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
        found.append(question)
    return found


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
