"""`grre sample` from the words that a person types, on small new models: against the sampler
called directly, and against itself in other shapes.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest

from grre_jax import generation, models, rollouts, sampling
from grre_jax.cli.entry import main
from grre_jax.config import Config, ModelSource
from grre_jax.generation import LOGPROBS
from grre_jax.random_streams import Purpose, run_key
from grre_jax.rollouts.tools.exchange import import_rows
from grre_jax.sampling_params import SampleOptions
from grre_jax.tasks import load_tokenizer
from grre_jax.training import build
from grre_jax.training.policies import find_scorer


@pytest.fixture
def sample(capsys):
    """`sample(words)`: the line of JSON that the command prints."""

    def run(*words):
        capsys.readouterr()
        assert main(["sample", *map(str, words), "--output", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_lines_hold_what_the_sampler_draws(digit_model, tmp_path, monkeypatch):
    """A prompt a call here. A file of lines is never overwritten."""
    monkeypatch.setattr(generation, "COMPLETIONS_PER_CALL", 4)
    given = [json.dumps({"prompt": f"{i}+{i}>", "number": i}) for i in range(5)]
    (tmp_path / "p.jsonl").write_text("\n".join(given))
    settings = {"temperature": 0.9, "top_k": 12, "top_p": 0.95, "min_p": 0.8, "max_new_tokens": 20}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    words += ["--num-samples=3", "--seed=5", f"--input={tmp_path / 'p.jsonl'}"]
    out = tmp_path / "o.jsonl"
    arguments = ["sample", str(digit_model), *words, f"--output={out}"]
    assert main(arguments) == 0
    assert main(arguments) == 2
    model = sampling.prepared(models.load(digit_model))
    params = sampling.SamplingParams(**settings)
    options = {"key": run_key(5, Purpose.SAMPLE), "group_size": 3}
    reasons = set()
    for i, line in enumerate(map(json.loads, out.read_text().splitlines())):
        assert line.items() >= ({"number": i, "position": i} | settings).items()
        assert generation.WRITTEN_FIELDS == line.keys() - {"prompt", "number"}
        place = {"positions": np.array([i])} | options
        found = jax.device_get(sampling.sample(model, [line["prompt_tokens"]], params, **place))
        for k, completion in enumerate(line["completions"]):
            length = slice(found.lengths[0, k])
            assert completion["tokens"] == found.tokens[0, k, length].tolist()
            reason = ("stop", "length")[found.finish_reasons[0, k]]
            assert completion["finish_reason"] == reason
            reasons.add(reason)
            for name, field in LOGPROBS.items():
                expected = getattr(found, f"{name}_logprobs")[0, k, length]
                np.testing.assert_allclose(completion[field], expected, atol=1e-5)
    assert i == 4 and reasons == {"stop", "length"}


def test_stop_strings_end_text_and_tokens(sample, digit_model):
    """Wherever the string lies, before an EOS token too."""
    words = (digit_model, "--prompt", "3+5>", "--num-samples", 24, "--max-new-tokens", 40)
    free, stopped = sample(*words), sample(*words, "--stop", "7", "--stop", "10")
    assert stopped["stop"] == ["7", "10"]
    ended = set()
    for whole, cut in zip(free["completions"], stopped["completions"], strict=True):
        places = [(whole["text"].find(stop), stop) for stop in ("7", "10")]
        place, stop = min((each for each in places if each[0] >= 0), default=(None, None))
        ended.add(stop and whole["finish_reason"])
        if stop is None:
            assert cut == whole
            continue
        assert (cut["text"], cut["stop_string"]) == (whole["text"][:place], stop)
        assert cut["finish_reason"] == "stop"
        assert cut["tokens"] == whole["tokens"][: place + len(stop)]
        assert {len(cut[name]) for name in LOGPROBS.values()} == {len(cut["tokens"])}
    assert ended == {None, "stop", "length"}


def test_ids_that_the_tokenizer_lacks_are_never_drawn(chat_model, tmp_path):
    """Of a model without them: sampling/test_sampler."""
    model = models.init(dataclasses.replace(models.load_config(chat_model), vocab_size=320))
    folder = models.save(model, tmp_path / "padded", tokenizer_from=chat_model)
    config = Config(name="padded", model=ModelSource(path=str(folder)))
    built = build.build_model(config, load_tokenizer(folder))
    sampled = generation.find(SampleOptions(str(folder), ("a",))).model
    assert built.num_ids == sampled.num_ids == 259
    assert find_scorer(str(folder)).vocab_size == 259


def test_rollouts_take_a_line_with_rewards(sample, digit_model, tmp_path):
    words = "--prompt=3+5> --num-samples=3 --max-new-tokens=20 --temperature=0.5 --top-k=3"
    line = sample(digit_model, *words.split())
    completions = line["completions"]
    for reward, completion in enumerate(completions):
        completion["reward"] = reward
    (tmp_path / "o.jsonl").write_text(json.dumps(line))
    import_rows("jsonl", tmp_path / "o.jsonl", tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    assert group.texts == [completion["text"] for completion in completions]
    assert group.tokens.tolist() == sum((part["tokens"] for part in completions), [])
    expected = sum((part["logprobs"] for part in completions), [])
    np.testing.assert_allclose(group.behavior_logprobs, expected, rtol=1e-6)
    assert (group.temperature, group.top_k, group.rewards.tolist()) == (0.5, 3, [0, 1, 2])


def test_dtypes_of_parameters_and_activations(digit_model):
    """Of a folder; a run: cli/test_entry."""
    options = SampleOptions(str(digit_model), ("3",), dtype="bfloat16", compute_dtype="float32")
    model = generation.find(options).model
    assert {str(value.dtype) for value in models.parameters(model).values()} == {"bfloat16"}
    assert str(model.embed_tokens(np.ones((1, 2), int)).dtype) == "float32"


def test_what_is_no_model_is_named_and_leaves_no_output(tmp_path, capsys, digit_model):
    output = tmp_path / "o.jsonl"
    words = ["--prompt=3", f"--output={output}"]
    assert main(["sample", str(tmp_path / "none"), *words]) == 1
    assert "none" in capsys.readouterr().err and not output.exists()
    assert main(["sample", str(digit_model), *words, "--dtype=float33"]) == 2
    assert "float33" in capsys.readouterr().err and not output.exists()
