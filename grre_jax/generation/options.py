"""The options of one `grre sample`."""

from __future__ import annotations

import dataclasses
from typing import Any

from grre_jax.errors import UsageError
from grre_jax.sampling_params import SamplingParams

STANDARD = "-"  # a file's name that means standard input or output


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of one `grre sample`.

    Args:
        model: a Hugging Face folder or a run's folder.
        prompts: given on the command line.
        input: a JSONL file of prompts, "-" for standard input; empty if the prompts are given.
        output: a JSONL file for the completions, "-" for standard output; empty to show their text.
        params: what is drawn.
        num_samples: completions per prompt.
        seed: of all draws.
        system: system message before every prompt; the chat template's if None.
        template_arguments: variables of the chat template, added to those of a run.
        raw: encode prompts without the chat template.
        cache_dtype: "float32", "bfloat16" or "int8"; None for that of the activations.
        max_concurrent: largest number of completions decoded side by side.
        dtype, compute_dtype: of parameters and activations; if empty the run's, or float32 and the
            parameters'.
        tokenizer: a folder with the tokenizer's files; the model's if empty.

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
    tokenizer: str = ""

    def __post_init__(self):
        if bool(self.prompts) == bool(self.input):
            raise UsageError(
                "give the prompts either with --prompt TEXT (as often as needed) or with --input"
                " FILE.jsonl"
            )
        for name, least, bits in (
            ("num_samples", 1, 31),
            ("seed", 0, 63),
            ("max_concurrent", 1, 31),
        ):
            if not least <= (value := getattr(self, name)) < 2**bits:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} must be from {least} to {2**bits - 1}, got {value}")
        for flag in ("system", "template_arguments"):
            if self.raw and getattr(self, flag) not in (None, {}):
                flag = flag.replace("_", "-")
                raise UsageError(
                    f"--{flag} is part of the chat template, which --raw leaves out: give one of"
                    " them"
                )

    def settings(self) -> dict[str, Any]:
        """Returns the settings of every completion, as the output records them."""
        return self.params.to_json() | {"seed": self.seed, "cache_dtype": self.cache_dtype}
