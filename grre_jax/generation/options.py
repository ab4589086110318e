"""The options of one `grre sample`."""

from __future__ import annotations

import dataclasses
from typing import Any

from grre_jax.errors import UsageError
from grre_jax.sampling_params import SamplingParams

STANDARD = "-"  # a file's name that means standard input or output


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of one `grre sample`, as its help describes them.

    Args:
        model: a Hugging Face folder or a run's folder.
        params: what is drawn.

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
    raw: bool = False
    cache_dtype: str | None = None
    max_concurrent: int = 32
    dtype: str = ""
    compute_dtype: str = ""

    def __post_init__(self):
        if bool(self.prompts) == bool(self.input):
            raise UsageError("--prompt, --input: expected exactly one of them")
        for name, low in {"num_samples": 1, "seed": 0, "max_concurrent": 1}.items():
            value = getattr(self, name)
            high = 2**63 if name == "seed" else 2**31
            if not low <= value < high:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag}: expected {low} to {high - 1}, got {value}")
        if self.raw and (self.system is not None or self.template_arguments):
            raise UsageError("--raw: expected without --system and --template-arguments")
