"""The record of sampling parameters, which the library, the configuration and the command line
share, the configuration's `sampling` section, and the options of `grre sample`.

A new parameter is a field here with its entry in the docstring. `SamplingConfig`,
`EvaluationConfig`, the flags of `grre sample` and `grre evaluate`, the settings in their output and
the stored groups derive from it. `SamplingDistribution.of` has the part that computes it, if it
changes the distribution of a token.
"""

import dataclasses
from typing import Annotated, Any, Literal

import grre_jax
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


@dataclasses.dataclass(frozen=True)
class SamplingConfig(SamplingParams):
    """Sampling settings of training.

    Args:
        temperature: divides the logits of the draws; training computes log-probs at the same
            temperature. Ratios use untruncated log-probs in any case.
        group_size: completions per prompt (K).
        max_prompt_tokens: longest prompt. Longer ones are left out: a position of the prompt
            stream takes the next question that fits, an evaluation has fewer.
        max_turns: most turns of a trajectory, of tasks that have environments. There max_new_tokens
            is the limit of a whole trajectory, observations included. Also the limit of stored
            trajectories where the objective needs turns (its option returns).
        max_turn_tokens: longest turn, in tokens; 0 for that of a trajectory.
        wait_for_answers: of tasks that have environments, decode on only when all environments that
            were asked have answered, so that the time they take changes no number. false keeps the
            device busy beside slow environments; log-probs then differ by rounding.
        prompts_per_call: prompts of one call of the sampler; 0 for all that a policy version
            samples, at most 2,048.
        max_concurrent: most completions of a call decoded side by side, over all devices; when one
            ends, the next takes its place. 0 for as many as fit in the devices' memory (on a CPU
            half of the machine's) beside the weights and the train state, and 256 a device where
            that is not known.
        cache_dtype: type of the cached keys and values; that of the activations if empty.
        record_routes: store the experts of every token, of a mixture of experts: two bytes for each
            of a token's experts at each layer. Not of trajectories.

    Examples:
        Trajectories of at most 64 tokens, in turns of at most 16:

        >>> from grre_jax import config as c
        >>> sampling = c.SamplingConfig(group_size=4, max_new_tokens=64, max_turn_tokens=16)
        >>> sampling.of_turn.max_new_tokens, sampling.draws_from_policy
        (16, True)
    """

    max_new_tokens: Positive = 8
    group_size: Positive = 8
    max_prompt_tokens: Positive = 16
    max_turns: Positive = 8
    max_turn_tokens: Count = 0
    wait_for_answers: bool = True
    prompts_per_call: Count = 0
    max_concurrent: Count = 0
    cache_dtype: Literal["float32", "bfloat16", ""] = ""
    record_routes: bool = False

    @property
    def of_turn(self) -> "SamplingConfig":
        """The settings of one turn of a trajectory: its own limit in place of the trajectory's."""
        return dataclasses.replace(self, max_new_tokens=self.max_turn_tokens or self.max_new_tokens)

    @property
    def engine(self) -> str:
        """Name of the sampler with its version, as rollouts record it."""
        return f"grre_jax.sampling {grre_jax.__version__}"
