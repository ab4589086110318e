"""What `grre sample` refuses before it looks at a model, and what importing it costs."""

import subprocess
import sys

import pytest

from grre_jax.cli.entry import main
from grre_jax.errors import UsageError
from grre_jax.generation.options import Options
from grre_jax.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompts": ()}, "either with --prompt"),
        ({"input": "x.jsonl"}, "either with --prompt"),
        ({"num_samples": 0}, "--num-samples must be from 1 to 2147483647, got 0"),
        ({"seed": -1}, "--seed must be from 0 to 9223372036854775807"),
        ({"seed": 2**63}, "--seed must be from 0"),
        ({"max_concurrent": 0}, "--max-concurrent must be from 1"),
        ({"raw": True, "system": "Be brief."}, "--system is part of the chat template"),
        ({"raw": True, "template_arguments": {"a": 1}}, "--template-arguments"),
    ],
)
def test_options_out_of_their_domain(fields, message):
    with pytest.raises(UsageError, match=message):
        Options(**{"model": "m", "prompts": ("hi",)} | fields)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--max-new-tokens", "0"], ("--max-new-tokens", "at least 1", "0")),
        (["--temperature", "-0.1"], ("--temperature", "at least 0", "-0.1")),
        (["--temperature", "nan"], ("--temperature", "nan")),
        (["--temperature", "inf"], ("--temperature", "finite", "inf")),
        (["--top-k", "-1"], ("--top-k", "at least 0", "-1")),
        (["--top-k", str(2**31)], ("--top-k", "at most 2147483647")),
        (["--top-p", "0"], ("--top-p", "(0, 1]", "0.0")),
        (["--min-p", "1.5"], ("--min-p", "[0, 1]", "1.5")),
        (["--stop", "a", "--stop", ""], ("--stop", "characters in each")),
        (["--stop", "\ufffd"], ("--stop", "characters in each")),
    ],
)
def test_sampling_parameters_out_of_their_domain_name_the_flag(words, named, capsys):
    assert main(["sample", "m", "--prompt", "hi", *words]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"grre: {named[0]}: expected")
    assert all(word in printed for word in named)


def test_two_outputs(capsys):
    assert main(["sample", "m", "--prompt", "hi", "--json", "--output", "x.jsonl"]) == 2
    assert "--json writes to standard output and --output to a file" in capsys.readouterr().err


def test_the_settings_that_the_output_records():
    params = SamplingParams(temperature=0.7, top_k=5, stop=("\n",))
    settings = Options("m", ("hi",), params=params, seed=3).settings()
    assert settings == {
        "temperature": 0.7, "top_k": 5, "top_p": 1.0, "min_p": 0.0, "max_new_tokens": 256, "seed": 3, "stop": ["\n"], "cache_dtype": None
    }  # fmt: skip


def test_help_loads_nothing_heavy():
    code = (
        "import sys, grre_jax.cli.entry\ntry: grre_jax.cli.entry.main(['sample', '--help'])\nexcept"
        " SystemExit: print()\nprint(bool({'jax', 'flax', 'transformers', 'rich', 'numpy'} &"
        " {m.partition('.')[0] for m in sys.modules}))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed.splitlines()[-1] == "False" and "--num-samples K" in printed
