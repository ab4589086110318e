"""ToolACE's conversations as questions: one for each turn that calls, a conversation on one
side.
"""

import json

from grre_jax import tasks

from . import published_samples


def test_a_turn_that_calls_is_a_question(tmp_path):
    task = tasks.build("toolace", path=published_samples.toolace(tmp_path), held_out=2)
    drawn = [task.question(place) for place in range(6)]
    assert len({question.question_id for question in drawn}) == 6 and len(task.evaluation(9)) == 2
    question = drawn[0]
    assert question.answer == question.demonstration and question.answer.startswith("[Get Tides(")
    assert question.prompt.startswith("You may call these functions")
    assert "high water" in question.prompt and "User:" not in question.prompt
    for text, right in ((question.answer, 1.0), (question.answer[:-2], 0.0)):
        verdict = task.verify(question, text)
        assert verdict == tasks.Verdict(right, {"correct": right, "well_formed": right})


def test_whole_conversations_are_held_out(tmp_path):
    """The three questions wanted are two of two."""
    records = [published_samples.toolace_record(number) for number in range(8)]
    for record in records:
        record["conversations"] += record["conversations"][:2]
    (tmp_path / "data.json").write_text(json.dumps(records))
    task = tasks.build("toolace", path=tmp_path, held_out=3)
    sides = [task.evaluation(99), list(map(task.question, range(12)))]
    assert [len({question.question_id for question in side}) for side in sides] == [4, 12]
    held_out, trained = ({q.prompt.split("port ")[1][0] for q in side} for side in sides)
    assert not trained & held_out
    later = next(question for question in sides[1] if "User: " in question.prompt)
    assert "\n\nAssistant: [Get Tides(" in later.prompt and "\n\nTool: [" in later.prompt


def test_turns_that_cannot_be_read_are_counted_and_left_out(tmp_path, caplog):
    records = [published_samples.toolace_record(number) for number in range(4)]
    broken = ("[Get Tides(port=]", '[Get "Tides"; Now(port="1")]')
    for record, answer in zip(records, broken, strict=False):
        record["conversations"][1]["value"] = answer
    (tmp_path / "data.json").write_text(json.dumps(records))
    task = tasks.build("toolace", path=tmp_path, held_out=1)
    assert len(task.evaluation(9)) == 1 and task.question(0) == task.question(1)
    assert task.unusable == 2 and "cannot be read" in caplog.text
