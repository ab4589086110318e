"""`grre sample` from the words that a person types, on small new models: against the sampler
called directly, and against itself in other shapes.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest

from grre_jax import models, rollouts, sampling
from grre_jax.cli.entry import main
from grre_jax.config import Config, ModelSource
from grre_jax.generation import command, prompts
from grre_jax.generation.command import LOGPROBS
from grre_jax.generation.options import Options
from grre_jax.generation.prompts import WRITTEN_FIELDS
from grre_jax.planner.abstract import abstract_model
from grre_jax.random_streams import Purpose, run_key
from grre_jax.rollouts.tools.exchange.importers import import_rows
from grre_jax.tasks import load_tokenizer
from grre_jax.training import build
from grre_jax.training.policies import find_scorer


@pytest.fixture
def sample(capsys):
    """`sample(words)`: the lines of JSON that the command prints."""

    def run(*words):
        capsys.readouterr()
        assert main(["sample", *map(str, words), "--output", "-"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_lines_hold_what_the_sampler_draws(sample, digit_model, tmp_path, monkeypatch):
    """However many completions are drawn together. A file of lines is never overwritten."""
    given = [json.dumps({"prompt": f"{i}+{i}>", "number": i}) for i in range(5)]
    (tmp_path / "p.jsonl").write_text("\n".join(given))
    settings = {"temperature": 0.9, "top_k": 12, "top_p": 0.95, "min_p": 0.8}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    words += ["--num-samples=3", "--max-new-tokens=20", "--seed=5", "--input", tmp_path / "p.jsonl"]
    lines = sample(digit_model, *words)
    monkeypatch.setattr(command, "COMPLETIONS_PER_CALL", 4)
    out = tmp_path / "o.jsonl"
    arguments = ["sample", *map(str, [digit_model, *words, "--output", out])]
    assert main(arguments) == 0
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert main(arguments) == 2
    found = sampling.sample(
        models.load(digit_model),
        [line["prompt_tokens"] for line in lines],
        sampling.SamplingParams(max_new_tokens=20, **settings),
        key=run_key(5, Purpose.SAMPLE),
        group_size=3,
    )
    reasons = set()
    for i, line in enumerate(lines):
        assert line.items() >= ({"number": i, "position": i} | settings).items()
        assert WRITTEN_FIELDS == line.keys() - {"prompt", "number"}
        for k, completion in enumerate(line["completions"]):
            assert completion["tokens"] == written[i]["completions"][k]["tokens"]
            length = slice(int(found.lengths[i, k]))
            assert completion["tokens"] == found.tokens[i, k, length].tolist()
            reason = ("stop", "length")[int(found.finish_reasons[i, k])]
            assert completion["finish_reason"] == reason
            reasons.add(reason)
            for name in ("logprobs", "sampling_logprobs", "policy_logprobs"):
                expected = getattr(found, {"logprobs": "behavior_logprobs"}.get(name, name))
                assert completion[name] == pytest.approx(expected[i, k, length].tolist(), abs=1e-5)
    assert reasons == {"stop", "length"}


def test_stop_strings_end_text_and_tokens(sample, digit_model):
    """Wherever the string lies, before an EOS token too."""
    words = (digit_model, "--prompt", "3+5>", "--num-samples", 24, "--max-new-tokens", 40)
    (free,) = sample(*words)
    (stopped,) = sample(*words, "--stop", "7", "--stop", "10")
    assert stopped["stop"] == ["7", "10"]
    ended = set()
    for whole, cut in zip(free["completions"], stopped["completions"], strict=True):
        text = whole["text"]
        places = [(text.index(stop), stop) for stop in ("7", "10") if stop in text]
        for place, stop in sorted(places)[:1]:
            end = {"text": text[:place], "stop_string": stop, "finish_reason": "stop"}
            end["tokens"] = whole["tokens"][: place + len(stop)]
            assert cut.items() >= end.items()
            assert {len(cut[name]) for name in LOGPROBS.values()} == {len(end["tokens"])}
        assert places or cut == whole
        ended.add(bool(places) and whole["finish_reason"])
    assert ended == {False, "stop", "length"}


def test_ids_that_the_tokenizer_lacks_are_never_drawn(sample, chat_model, tmp_path):
    model = models.init(dataclasses.replace(models.load_config(chat_model), vocab_size=320))
    model.embed[...] = model.embed[...].at[259:].multiply(20)
    folder = models.save(model, tmp_path / "padded", tokenizer_from=chat_model)
    (line,) = sample(folder, "--prompt", "ab", "--num-samples", 4, "--max-new-tokens", 12)
    assert max(max(part["tokens"]) for part in line["completions"]) < 259
    config = Config(name="padded", model=ModelSource(path=str(folder)))
    built = build.build_model(config, load_tokenizer(folder))
    assert [found.num_ids for found in (built, abstract_model(config))] == [259, 259]
    assert find_scorer(str(folder)).vocab_size == 259


def test_rollouts_take_a_line_with_rewards(sample, digit_model, tmp_path):
    words = "--prompt=3+5> --num-samples=3 --max-new-tokens=20 --temperature=0.5 --top-k=3"
    (line,) = sample(digit_model, *words.split())
    completions = line["completions"]
    for reward, completion in enumerate(completions):
        completion["reward"] = reward
    (tmp_path / "o.jsonl").write_text(json.dumps(line | {"answer": 3}))
    import_rows("jsonl", tmp_path / "o.jsonl", tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    assert group.texts == [completion["text"] for completion in completions]
    assert group.tokens.tolist() == sum((part["tokens"] for part in completions), [])
    expected = sum((part["logprobs"] for part in completions), [])
    np.testing.assert_allclose(group.behavior_logprobs, expected, rtol=1e-6)
    assert (group.temperature, group.top_k, group.answer) == (0.5, 3, "3")
    assert group.rewards.tolist() == [0, 1, 2]


def test_a_runs_policy_and_its_dtypes(tiny_run):
    given = prompts.find(Options(str(tiny_run), ("3",), dtype="bfloat16", compute_dtype="float32"))
    model, step = given.load()
    assert step == 8
    assert {str(value.dtype) for value in models.parameters(model).values()} == {"bfloat16"}
    assert str(model.embed_tokens(jax.numpy.ones((1, 2), int)).dtype) == "float32"


def test_what_is_no_model_is_named_and_leaves_no_output(tmp_path, capsys, digit_model):
    output = tmp_path / "o.jsonl"
    words = ["--prompt=3", f"--output={output}"]
    assert main(["sample", str(tmp_path / "none"), *words]) == 1
    assert "none" in capsys.readouterr().err and not output.exists()
    assert main(["sample", str(digit_model), *words, "--dtype=float33"]) == 2
    assert "float33" in capsys.readouterr().err and not output.exists()
