"""Runs whose chat template writes today's date: it is that of the day on which the run began."""

import dataclasses

import pytest

from grre_jax import config as c
from grre_jax import models, rollouts
from grre_jax.errors import UsageError
from grre_jax.generation import prompts
from grre_jax.generation.options import Options
from grre_jax.tasks.tokenizers import chat
from grre_jax.training import build, loop, policies, run_folder
from grre_jax.training.loop import train
from grre_jax.training.policies import find_scorer
from grre_jax.training.roles import ExplorerRole, explore_run, learn

from ..test_roles import quiet, together

pytestmark = pytest.mark.usefixtures("no_reports")

DATED = "{{ strftime_now('%d %b %Y') }} {{ messages[0]['content'] }}:"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as algorithms

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(algorithms.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = DATED
    files = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(str(files))
    shape = models.ModelConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        eos_ids=(256,),
    )
    return models.save(models.init(shape), files / "model", tokenizer_from=files)


@pytest.fixture
def config(make_config, model, tmp_path):
    return make_config(
        tmp_path / "run",
        model=c.ModelSource(path=str(model)),
        task=c.TaskConfig("chat_arithmetic", {"template": "{expression}"}),
        sampling=c.SamplingConfig(
            group_size=4, max_prompt_tokens=32, max_new_tokens=3, prompts_per_call=4
        ),
        regime=c.Regime(),
        training=c.TrainingConfig(steps=2, prompts_per_step=4),
        warm_start=c.WarmStartConfig(),
        evaluation=c.EvaluationConfig(),
        checkpoint=c.CheckpointConfig(every=1),
    )


@pytest.fixture
def clock(monkeypatch):
    def set_to(day):
        for module in (chat, loop):
            monkeypatch.setattr(module, "today", lambda: day)

    return set_to


def days(folder):
    """The dates in the prompts that a run sampled, and the data sets' tokenizers."""
    reader = rollouts.read(folder / "rollouts")
    decode = policies.policy_at(folder, policies.load_config(folder))[0].tokenizer.decode
    dates = {decode(group.prompt_tokens)[:11] for group in reader}
    return dates, {entry.metadata["tokenizer"] for entry in reader.datasets}


def test_a_resumed_run_keeps_the_day_on_which_it_began(config, clock):
    clock("2031-01-31")
    half = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=1))
    folder = train(half, console=quiet())
    assert policies.load_config(folder).model.template_date == "2031-01-31"
    clock("2031-02-01")
    train(config, resume=True, console=quiet())
    scorer = find_scorer(str(folder))
    assert days(folder) == ({"31 Jan 2031"}, {scorer.tokenizer.fingerprint})
    for raw in (False, True):
        sampled = prompts.find(Options(str(folder), ("1+1",), raw=raw)).tokenizer
        assert (sampled.fingerprint == scorer.tokenizer.fingerprint) == (not raw)
    other = dataclasses.replace(
        config, model=dataclasses.replace(config.model, template_date="2031-02-01")
    )
    with pytest.raises(UsageError, match=r"model\.template_date"):
        train(other, resume=True, console=quiet())


def test_the_date_of_a_folder_is_that_of_its_run(config, clock):
    clock("2031-02-01")
    parts = build.build(config)
    assert run_folder.stored_date(config.folder) == "" and parts.dated("") is parts
    dated = parts.dated("2031-01-31")
    config.folder.mkdir()
    (config.folder / "config.json").write_text(dated.config.to_json())
    assert run_folder.stored_date(config.folder) == "2031-01-31"
    assert dated.tokenizer.render("1").startswith("31 Jan 2031")
    assert dated.dated("2031-03-01") is dated and dated.judge is parts.judge


def test_an_explorer_has_the_date_of_its_learner(config, monkeypatch):
    monkeypatch.setattr(loop, "today", lambda: "2031-01-31")
    one = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=1))
    together(
        lambda: learn(one, console=quiet()),
        lambda: explore_run(one, ExplorerRole("a"), console=quiet()),
    )
    assert days(config.folder)[0] == {"31 Jan 2031"}
