"""From questions to recorded groups, and what is sealed of them."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from grre_jax import rollouts
from grre_jax.errors import DataError
from grre_jax.tasks.judging import Judged
from grre_jax.training import build
from grre_jax.training.actors.explorer import make_explorer
from grre_jax.training.actors.supply import Supply, calls_of
from grre_jax.training.actors.weight_sync import Policy
from grre_jax.training.data import plan
from grre_jax.training.data.plan import Regime, Samples, Schedule
from grre_jax.training.data.sources import Source
from grre_jax.training.policies import score_groups

from ...run_processes import first_state


@pytest.fixture(scope="module")
def explorer(make_config, tmp_path_factory):
    words = "--seed 11 --sampling.temperature 0.9 --sampling.top_k 12"
    parts = build.build(make_config(tmp_path_factory.mktemp("explore") / "run", words))
    state = first_state(parts)
    return make_explorer(parts), state.params


@pytest.fixture(scope="module")
def drawn(explorer):
    """`drawn(count, **options)`: the groups of the first positions, by an explorer that differs
    in these fields.
    """
    explorer, params = explorer

    def draw(count=10, attempt=0, **fields):
        questions = [explorer.task.question(position) for position in range(count)]
        sampler = dataclasses.replace(explorer, **fields)
        return sampler.groups(params, questions, range(count), policy_version=3, attempt=attempt)

    return draw


@pytest.fixture(scope="module")
def groups(drawn):
    return drawn()


def test_a_group_holds_what_was_asked_and_sampled(explorer, drawn, groups):
    explorer, params = explorer
    behavior = score_groups(explorer.graph, params, groups, explorer.mesh, temperature=0.9)
    policy = score_groups(explorer.graph, params, groups, explorer.mesh)
    for position, group in enumerate(groups):
        question = explorer.task.question(position)
        for name in ("prompt", "answer", "question_id"):
            assert getattr(group, name) == getattr(question, name)
        assert (group.position, group.attempt, group.extra) == (position, 0, {})
        assert (group.temperature, group.top_k, group.seed) == (0.9, 12, 11)
        assert group.prompt_tokens.tolist() == explorer.tokenizer.encode_prompt(question)
        assert group.mask.all() and group.policy_version.tolist() == [3] * 4
        np.testing.assert_allclose(group.behavior_logprobs, behavior[position], atol=1e-4)
        np.testing.assert_allclose(group.policy_logprobs, policy[position], atol=1e-4)
        # top_k makes what it keeps likelier
        assert (group.sampling_logprobs >= group.behavior_logprobs - 1e-5).all()
        for k, tokens in enumerate(np.split(group.tokens, group.offsets[1:-1])):
            assert group.texts[k] == explorer.tokenizer.decode(tokens)
            assert (group.finish_reasons[k] == "stop") == (tokens[-1] in explorer.tokenizer.eos_ids)
            assert group.rewards[k] == explorer.task.verify(question, group.texts[k]).reward
    assert max((g.sampling_logprobs - g.behavior_logprobs).max() for g in groups) > 1e-3
    reasons = {reason for group in groups for reason in group.finish_reasons}
    assert reasons == {"stop", "length"} and len({group.group_id for group in groups}) == 10
    assert [g.texts for g in drawn(attempt=1)] != [g.texts for g in groups]


def test_stop_strings_cut_texts_before_they_are_judged(explorer, drawn, groups):
    explorer, _ = explorer
    stop = next(text[1] for group in groups for text in group.texts if len(text) > 2)
    cut = drawn(config=dataclasses.replace(explorer.config, stop=(stop,)))
    for position, (whole, group) in enumerate(zip(groups, cut, strict=True)):
        question = explorer.task.question(position)
        for k, text in enumerate(whole.texts):
            kept = text.index(stop) + 1 if stop in text else whole.lengths[k]
            assert group.texts[k] == text.partition(stop)[0] and group.lengths[k] == kept
            assert group.rewards[k] == explorer.task.verify(question, group.texts[k]).reward


@pytest.mark.parametrize(
    "tokens, name", [([1] * 5, "sampling.max_prompt_tokens"), ([999, 1], "token 999")]
)
def test_a_prompt_that_the_model_cannot_read_is_named(drawn, tokens, name):
    with pytest.raises(DataError, match=name):
        drawn(1, tokenizer=SimpleNamespace(encode_prompt=lambda question: tokens))


def seal(explorer, folder, rounds=0):
    """The reader of a folder to which ten groups were sampled, and those by position."""
    explorer, params = explorer
    folder.mkdir(exist_ok=True)
    reader = rollouts.read(folder)
    config = SimpleNamespace(cluster=SimpleNamespace(samples=False))
    own = Samples(Source(reader), Schedule(Regime(), 10), 1, rounds)
    here = Supply(SimpleNamespace(config=config), dataclasses.replace(explorer), own, None)
    policy = Policy(3, explorer.policy(params), {"task": "arithmetic"})
    here._sample_calls(policy, calls_of(range(10), 4), 4, lambda: None)
    here._wait()
    here.close()
    return reader, {group.position: group for group in reader}


def test_what_is_missing_is_sampled_by_whole_calls_each_a_data_set(explorer, groups, tmp_path):
    """So that every bit of what was missing is the same."""
    reader, expected = seal(explorer, tmp_path / "r")
    assert [(e.groups, e.policy_version) for e in reader.datasets] == [(4, 3), (4, 3), (2, 3)]
    assert [group.texts for group in reader] == [group.texts for group in groups]
    rollouts.write(tmp_path / "part", [reader[5], reader[6]], writer="other", policy_version=3)
    found, again = seal(explorer, tmp_path / "part")
    assert [entry.groups for entry in found.datasets] == [2, 4, 2, 2] and again == expected


def test_places_without_signal_are_refilled_by_the_same_explorer(explorer, groups, tmp_path):
    reader, expected = seal(explorer, tmp_path / "r", rounds=2)
    flat = [place for place in range(10) if not groups[place].has_reward_variance]
    refills = [plan.refill_position(place, 1) for place in flat]
    assert flat and sorted(reader.index)[10 : 10 + len(flat)] == refills
    # Killed between two rounds, it goes on where it was.
    begun = list(reader)[:10]
    rollouts.write(tmp_path / "killed", begun, writer="explorer", policy_version=3)
    _, again = seal(explorer, tmp_path / "killed", rounds=2)
    assert again == expected


def test_a_judge_judges_texts_and_what_it_could_not_is_recorded(drawn, groups):
    """Four completions of six questions, in two calls, the second filled up; the judge sees each
    question of the run once.
    """
    asked = []
    failures = ["", "", "", "crash"]

    def judge(some):
        asked.extend(question.question_id for question, _ in some)
        rewards = [np.array([*map(len, texts[:3]), np.nan], np.float32) for _, texts in some]
        return [Judged(reward, {}, failures, [*"abcd"]) for reward in rewards]

    judged = drawn(6, judge=judge)
    assert asked == [group.question_id for group in groups[:6]]
    for group, expected in zip(judged, groups, strict=False):
        assert group.texts == expected.texts
        assert group.rewards[:3].tolist() == [len(text) for text in group.texts[:3]]
        assert group.judged.tolist() == [True, True, True, False]
        assert group.extra == {"verify_failures": failures, "verify_reasons": [*"abcd"]}
