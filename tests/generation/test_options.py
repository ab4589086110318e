"""What `grre sample` refuses before it looks at a model."""

import pytest

from grre_jax.cli.entry import main
from grre_jax.domains import ConfigError
from grre_jax.sampling_params import SampleOptions


@pytest.mark.parametrize("fields", [{"prompt": ()}, {"prompt": ("hi",), "input": "x.jsonl"}])
def test_either_prompts_or_a_file_of_them_are_given(fields):
    with pytest.raises(ConfigError) as caught:
        SampleOptions(model="m", **fields)
    assert caught.value.field == "prompt"


# The domains: tests/sampling/test_params.
@pytest.mark.parametrize(
    "words, flag", [("--temperature nan", "--temperature"), ("--stop a --stop=", "stop")]
)
def test_sampling_parameters_out_of_their_domain_name_the_flag(words, flag, capsys):
    assert main(["sample", "m", "--prompt", "hi", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"grre: {flag}: expected")
