"""The options of one `grre sample`."""

import dataclasses
from typing import Any

from grre_jax.errors import UsageError
from grre_jax.sampling_params import SamplingParams

STANDARD = "-"  # a file's name that means standard output


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of one `grre sample`, as its help describes them.

    Raises:
        UsageError: an option outside its domain, or two that exclude each other.
    """

    model: str
    prompts: tuple[str, ...] = ()
    input: str = ""
    output: str = ""
    params: SamplingParams = SamplingParams()
    num_samples: int = 1
    seed: int = 0
    system: str | None = None
    template_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    cache_dtype: str | None = None
    max_concurrent: int = 32
    dtype: str = ""
    compute_dtype: str = ""

    def __post_init__(self):
        if bool(self.prompts) == bool(self.input):
            raise UsageError("--prompt, --input: expected exactly one of them")
        domains = {"num-samples": (1, 2**31), "seed": (0, 2**63), "max-concurrent": (1, 2**31)}
        for flag, (low, high) in domains.items():
            if not low <= (value := getattr(self, flag.replace("-", "_"))) < high:
                raise UsageError(f"--{flag}: expected {low} to {high - 1}, got {value}")
