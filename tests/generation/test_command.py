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
from grre_jax.errors import DataError
from grre_jax.generation import command
from grre_jax.generation.options import Options
from grre_jax.generation.prompts import WRITTEN_FIELDS, find
from grre_jax.planner.abstract import abstract_model
from grre_jax.random_streams import Purpose, run_key
from grre_jax.rollouts.tools.exchange.importers import import_jsonl
from grre_jax.tasks import load_tokenizer
from grre_jax.training import build, policies
from grre_jax.training.policies import find_scorer


@pytest.fixture
def sample(capsys):
    """`sample(words)`: the lines of JSON that the command prints."""

    def run(*words):
        capsys.readouterr()
        assert main(["sample", *map(str, words), "--output", "-"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def drawn(lines):
    return [[(c["tokens"], c["finish_reason"]) for c in line["completions"]] for line in lines]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"{i}+{i}>", "number": i}) + "\n" for i in range(5))
    )
    return path


def test_lines_hold_what_the_sampler_draws(sample, digit_model, prompts):
    settings = {"temperature": 0.9, "top_k": 12, "top_p": 0.95, "min_p": 0.8}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    words += ["--num-samples=3", "--max-new-tokens=20", "--seed=5", "--input", prompts]
    lines = sample(digit_model, *words)
    found = sampling.sample(
        models.load(digit_model),
        [line["prompt_tokens"] for line in lines],
        sampling.SamplingParams(max_new_tokens=20, **settings),
        key=run_key(5, Purpose.SAMPLE),
        group_size=3,
    )
    for i, line in enumerate(lines):
        assert line.items() >= ({"number": i} | settings).items()
        for k, completion in enumerate(line["completions"]):
            length = slice(int(found.lengths[i, k]))
            assert completion["tokens"] == found.tokens[i, k, length].tolist()
            reason = ("stop", "length")[int(found.finish_reasons[i, k])]
            assert completion["finish_reason"] == reason
            for name in ("logprobs", "sampling_logprobs", "policy_logprobs"):
                expected = getattr(found, {"logprobs": "behavior_logprobs"}.get(name, name))
                assert completion[name] == pytest.approx(expected[i, k, length].tolist(), abs=1e-5)
    assert {reason for row in drawn(lines) for _, reason in row} == {"stop", "length"}


@pytest.mark.slow
def test_a_completion_depends_on_seed_prompt_and_number_alone(
    sample, digit_model, prompts, monkeypatch
):
    words = (digit_model, "--input", prompts, "--num-samples", 2, "--max-new-tokens", 20)
    lines = drawn(sample(*words))
    assert drawn(sample(*words, "--max-concurrent", 3)) == lines
    monkeypatch.setattr(command, "COMPLETIONS_PER_CALL", 4)
    assert drawn(sample(*words)) == lines
    assert drawn(sample(*words, "--seed", 1)) != lines


def test_the_texts_that_are_shown_are_those_that_are_written(sample, digit_model, capsys):
    words = (str(digit_model), "--prompt", "3+5>", "--max-new-tokens", "20")
    texts = [c["text"] for c in sample(*words, "--num-samples", 2)[0]["completions"]]
    assert main(["sample", *words]) == 0
    assert capsys.readouterr().out == texts[0] + "\n"
    assert main(["sample", *words, "--num-samples", "2"]) == 0
    shown = capsys.readouterr().out
    assert all(f"sample {k}:" in shown and texts[k - 1] in shown for k in (1, 2))


def test_stop_strings_end_text_and_tokens(sample, digit_model):
    """Wherever the string lies, before an EOS token too."""
    words = (digit_model, "--prompt", "3+5>", "--num-samples", 24, "--max-new-tokens", 40)
    (free,), (stopped,) = sample(*words), sample(*words, "--stop", "7", "--stop", "10")
    assert stopped["stop"] == ["7", "10"]
    ended = set()
    for whole, cut in zip(free["completions"], stopped["completions"], strict=True):
        text = whole["text"]
        places = [(text.index(stop), stop) for stop in ("7", "10") if stop in text]
        if places:
            place, stop = min(places)
            end = {"text": text[:place], "stop_string": stop, "finish_reason": "stop"}
            for name in ("tokens", "logprobs", "sampling_logprobs", "policy_logprobs"):
                end[name] = whole[name][: place + len(stop)]
            assert cut.items() >= end.items()
        else:
            assert cut == whole
        ended.add(bool(places) and whole["finish_reason"])
    assert ended == {False, "stop", "length"}


@pytest.mark.slow
def test_a_runs_last_policy(sample, tiny_run, tmp_path):
    policies.export(tiny_run, tmp_path / "model")
    words = ("--prompt", "3+5>", "--num-samples", 4, "--max-new-tokens", 3)
    of_run, of_model = (sample(path, *words)[0] for path in (tiny_run, tmp_path / "model"))
    assert drawn([of_run]) == drawn([of_model])
    assert of_run["model"] == {"path": str(tiny_run), "step": 8}
    assert of_model["model"]["step"] is None


def test_ids_that_the_tokenizer_lacks_are_never_drawn(sample, chat_model, tmp_path):
    model = models.init(dataclasses.replace(models.load_config(chat_model), vocab_size=320))
    model.embed[...] = model.embed[...].at[259:].multiply(20)
    folder = models.save(model, tmp_path / "padded", tokenizer_from=chat_model)
    (line,) = sample(folder, "--prompt", "ab", "--num-samples", 4, "--max-new-tokens", 12)
    assert max(max(part["tokens"]) for part in line["completions"]) < 259
    config = Config(name="padded", model=ModelSource(path=str(folder)))
    built = build.build_model(config, load_tokenizer(folder))
    loaded, _ = find(Options(str(folder), ("3",))).load()
    for found in (built, loaded, abstract_model(config)):
        assert found.num_ids == 259
    assert find_scorer(str(folder)).vocab_size == 259 and models.load(folder).num_ids is None
    exported = models.load(models.save(built, tmp_path / "exported"))
    np.testing.assert_array_equal(exported.embed[...], model.embed[...])


def test_rollouts_take_a_line_with_rewards(sample, digit_model, tmp_path):
    words = (
        "--prompt=3+5>",
        "--num-samples=2",
        "--max-new-tokens=5",
        "--temperature=0.5",
        "--top-k=3",
    )
    (line,) = sample(digit_model, *words)
    completions = line["completions"]
    for reward, completion in enumerate(completions):
        completion["reward"] = reward
    (tmp_path / "o.jsonl").write_text(json.dumps(line | {"answer": 3}) + "\n")
    import_jsonl(tmp_path / "o.jsonl", tmp_path / "r")
    (group,) = rollouts.read(tmp_path / "r")
    for stored, name in (("texts", "text"), ("finish_reasons", "finish_reason")):
        assert getattr(group, stored) == [completion[name] for completion in completions]
    for stored, name in (("tokens", "tokens"), ("behavior_logprobs", "logprobs")):
        expected = np.concatenate([completion[name] for completion in completions])
        np.testing.assert_allclose(getattr(group, stored), expected, rtol=1e-6)
    assert (group.temperature, group.top_k, group.answer) == (0.5, 3, "3")
    assert group.rewards.tolist() == [0, 1]


def test_dtypes(tiny_run, digit_model):
    for path in (tiny_run, digit_model):
        model, _ = find(
            Options(str(path), ("3",), dtype="bfloat16", compute_dtype="float32")
        ).load()
        assert {str(value.dtype) for value in models.parameters(model).values()} == {"bfloat16"}
        assert str(model.embed_tokens(jax.numpy.ones((1, 2), int)).dtype) == "float32"


def test_a_file_of_lines_is_never_overwritten(digit_model, prompts, tmp_path, capsys):
    out = tmp_path / "o.jsonl"
    words = ["sample", digit_model, "--input", prompts, "--output", out, "--max-new-tokens", 4]
    assert main([*map(str, words)]) == 0
    before = out.read_bytes()
    lines = [json.loads(line) for line in before.splitlines()]
    assert [line["position"] for line in lines] == list(range(5))
    assert WRITTEN_FIELDS == lines[0].keys() - {"prompt", "number"}
    assert main([*map(str, words)]) == 2 and out.read_bytes() == before
    assert "--output" in capsys.readouterr().err


def test_what_is_no_model(tmp_path, capsys, digit_model):
    (tmp_path / "x").write_text("")
    for path in (tmp_path, tmp_path / "none"):
        assert main(["sample", str(path), "--prompt", "a"]) == 1
        assert str(path) in capsys.readouterr().err
    assert main(["sample", str(digit_model), "--prompt", "3", "--dtype", "float33"]) == 2
    assert "float33" in capsys.readouterr().err


def test_damaged_weights_leave_no_output(digit_model, tmp_path):
    for file in digit_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:2000])
    output = tmp_path / "o.jsonl"
    with pytest.raises(DataError, match="safetensors"):
        main(
            [
                "sample",
                str(tmp_path),
                "--prompt=3",
                f"--output={output}",
                "--max-new-tokens=4",
                "--debug",
            ]
        )
    assert not output.exists()
