"""Runs whose chat template writes today's date: it is that of the day on which the run began."""

import shutil

import pytest

from grre_jax import rollouts
from grre_jax.errors import UsageError
from grre_jax.generation import prompts
from grre_jax.generation.options import Options
from grre_jax.training import loop
from grre_jax.training.config.overrides import override
from grre_jax.training.loop import train
from grre_jax.training.policies import find_scorer

from ...generation.conftest import chat_model  # noqa: F401
from ...run_processes import quiet

pytestmark = pytest.mark.usefixtures("no_reports")

DATED = "{{ strftime_now('%d %b %Y') }} {{ messages[0]['content'] }}:"


@pytest.fixture(scope="module")
def model(chat_model, tmp_path_factory):  # noqa: F811
    folder = shutil.copytree(chat_model, tmp_path_factory.mktemp("dated") / "model")
    (folder / "chat_template.jinja").write_text(DATED)
    return folder


@pytest.fixture
def config(make_config, model, tmp_path):
    words = f"--model.path {model} --task.name chat_arithmetic"
    words += " --task.options.template {expression} --sampling.max_prompt_tokens 32"
    words += " --regime.sync_interval 1 --training.steps 2 --warm-start.steps 0"
    words += " --evaluation.questions 0 --checkpoint.every 1"
    return make_config(tmp_path / "run", words)


@pytest.fixture
def clock(monkeypatch):
    return lambda day: monkeypatch.setattr(loop, "today", lambda: day)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_day_on_which_it_began(config, clock):
    clock("2031-01-31")
    folder = train(override(config, ["--training.steps=1"]), console=quiet())
    clock("2031-02-01")
    train(config, resume=True, console=quiet())
    tokenizer = find_scorer(str(folder)).tokenizer
    reader = rollouts.read(folder / "rollouts")
    assert {tokenizer.decode(group.prompt_tokens)[:11] for group in reader} == {"31 Jan 2031"}
    assert {entry.metadata["tokenizer"] for entry in reader.datasets} == {tokenizer.fingerprint}
    sampled = prompts.find(Options(str(folder), ("1+1",))).tokenizer
    assert sampled.fingerprint == tokenizer.fingerprint
    other = override(config, ["--model.template_date=2031-02-01"])
    with pytest.raises(UsageError, match=r"model\.template_date"):
        train(other, resume=True, console=quiet())
