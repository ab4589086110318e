"""The record of sampling parameters, which the library, the configuration and the command line
share, and the options of `grre sample`.

A new parameter is a field here with its entry in the docstring. `SamplingConfig`,
`EvaluationConfig`, the flags of `grre sample` and `grre evaluate`, the settings in their output and
the stored groups derive from it. `SamplingDistribution.of` has the part that computes it, if it
changes the distribution of a token.
"""

import dataclasses
from typing import Annotated, Any, Literal

from grre_jax.domains import ConfigError, Count, NonNegative, Positive, Record, Seed, Share

DISTRIBUTION = ("temperature", "top_k", "top_p", "min_p")  # what the distribution of a token needs


@dataclasses.dataclass(frozen=True)
class SamplingParams(Record):
    """Parameters of the distribution of a token, and of a completion's end.

    Args:
        temperature: divides the logits; 0 is greedy decoding.
        top_k: draw from the k most likely tokens only; 0 for all.
        top_p: draw from the most likely tokens that together have this probability, after top_k; 1
            for all.
        min_p: draw from tokens at least this times as likely as the most likely one, after top_p; 0
            for all.
        max_new_tokens: longest completion, EOS included.
        stop (strings): end a completion before the first of these in its text. The tokens end with
            the one that completes it.

    Raises:
        ConfigError: a value outside its domain.

    Examples:
        >>> from grre_jax import sampling
        >>> params = sampling.SamplingParams(temperature=0.8, top_p=0.95, stop="\\n")
        >>> params.stop, params.truncated, params.draws_from_policy
        (('\\n',), True, False)
        >>> sampling.SamplingParams(top_p=0)
        Traceback (most recent call last):
            ...
        grre_jax.domains.ConfigError: top_p: expected float in (0, 1], got 0
    """

    temperature: NonNegative = 1.0
    top_k: Count = 0
    top_p: Annotated[float, "(0, 1]"] = 1.0
    min_p: Share = 0.0
    max_new_tokens: Positive = 256
    stop: tuple[str, ...] = ()

    def __post_init__(self):
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        super().__post_init__()

    def _validate(self) -> None:
        if not all(self.stop) or any("\N{REPLACEMENT CHARACTER}" in text for text in self.stop):
            raise ConfigError("stop", "characters in each string, none of them U+FFFD", self.stop)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Returns the names of the sampling parameters, without those that a subclass adds."""
        return tuple(field.name for field in dataclasses.fields(SamplingParams))

    def to_json(self) -> dict[str, Any]:
        """Returns every parameter by name, as JSON holds it."""
        return {name: getattr(self, name) for name in self.names()} | {"stop": list(self.stop)}

    def distribution_settings(self) -> dict[str, float]:
        """Returns the parameters that the distribution of a token depends on."""
        return {name: getattr(self, name) for name in DISTRIBUTION}

    @property
    def truncated(self) -> bool:
        """True if some tokens may not be drawn."""
        return (self.top_k, self.top_p, self.min_p) != (0, 1, 0)

    @property
    def draws_from_policy(self) -> bool:
        """True if every token is drawn from the policy itself: temperature 1, no truncation."""
        return self.temperature == 1 and not self.truncated


@dataclasses.dataclass(frozen=True)
class SampleOptions(Record):
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
    dtype: str | None = None
    compute_dtype: str | None = None

    def _validate(self) -> None:
        if bool(self.prompt) == bool(self.input):
            raise ConfigError("prompt", "exactly one of prompt and input", self.prompt)
