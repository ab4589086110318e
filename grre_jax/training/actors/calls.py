"""The calls of the sampler that a run makes: their prompts and decode slots.

Explorers make these calls; `grre compile` and `grre explain` predict them.
"""

import dataclasses

import jax.numpy as jnp
from jax.sharding import Mesh

from grre_jax.models.config import ModelConfig
from grre_jax.parallel import processes
from grre_jax.sampling.call import call_shape
from grre_jax.sampling.config import SamplingConfig
from grre_jax.sampling.decoding.state import Shape
from grre_jax.sampling.memory import (
    ROWS_WITHOUT_LIMIT,
    USABLE,
    device_bytes,
    fitting_rows,
    row_bytes,
    weights_bytes,
)
from grre_jax.sampling_params import SamplingParams
from grre_jax.training import build
from grre_jax.training.config.run import Config

# Prompts of a call if sampling.prompts_per_call is 0. What is sealed together bounds the groups
# that a crash can lose and that memory holds.
MOST_PROMPTS = 2048
# Copies of the parameters that training keeps: theirs, those that the run started from, and two
# moments.
STATE_COPIES = 4


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
    stored, compute = (str(jnp.dtype(x)) if x else "" for x in build.dtypes(config.model))
    activations = compute or stored
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
    size = model.parameters_on(expert) * build.dtypes(config.model)[0].itemsize * copies
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


def greedy_settings(settings: SamplingConfig) -> SamplingConfig:
    """Returns the settings of an evaluation's greedy completions, one per question, from the result
    of `evaluation_settings`.
    """
    return dataclasses.replace(settings, temperature=0.0, group_size=1)


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
