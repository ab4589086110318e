"""The options of one `grre sample`."""

import dataclasses
from typing import Any, Literal

from grre_jax.domains import ConfigError, Positive, Record, Seed
from grre_jax.sampling_params import SamplingParams

STANDARD = "-"  # a file's name that means standard output


@dataclasses.dataclass(frozen=True)
class Options(Record):
    """Model, prompts and computation.

    Args:
        model: a Hugging Face folder, or a run folder (its last checkpoint).
        prompt: one user turn.
        input: JSON lines with "prompt" or "messages" each.
        output: write JSON lines to a new file; - for standard output.
        params: of the distribution of a token.
        num_samples: completions per prompt.
        seed: of the draws.
        system: system message; the chat template's if not given.
        template_arguments: variables of the chat template as a JSON object, added to a run's:
            {"enable_thinking": false}.
        cache_dtype: of keys and values; the activations' if not given.
        max_concurrent: completions decoded side by side.
        dtype: of the parameters; float32, or the run's, if not given.
        compute_dtype: of the activations; the parameters' if not given.

    Raises:
        ConfigError: an option outside its domain, or two that exclude each other.
    """

    model: str
    prompt: tuple[str, ...] = ()
    input: str = ""
    output: str = ""
    params: SamplingParams = SamplingParams()
    num_samples: Positive = 1
    seed: Seed = 0
    system: str | None = None
    template_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    cache_dtype: Literal["float32", "bfloat16"] | None = None
    max_concurrent: Positive = 32
    dtype: str = ""
    compute_dtype: str = ""

    def _validate(self) -> None:
        if bool(self.prompt) == bool(self.input):
            raise ConfigError("prompt", "exactly one of prompt and input", self.prompt)
