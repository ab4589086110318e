"""ToolACE's conversations as questions: one for each turn that calls, a conversation on one
side.
"""

import json

from grre_jax import tasks

from . import published_samples


def write(folder, records):
    (folder / "data.json").write_text(json.dumps(records))
    return folder / "data.json"


def test_a_turn_that_calls_is_a_question(tmp_path, caplog):
    """One whose calls cannot be read is counted and left out."""
    records = [published_samples.toolace_record(number) for number in range(9)]
    records[8]["conversations"][1]["value"] = "[Get Tides(port=]"
    task = tasks.build("toolace", path=write(tmp_path, records), held_out=2)
    drawn = [task.question(place) for place in range(6)]
    assert len({question.question_id for question in drawn}) == 6 and len(task.evaluation(9)) == 2
    assert task.unusable == 1 and "cannot be read" in caplog.text
    question = drawn[0]
    assert question.answer == question.demonstration and question.answer.startswith("[Get Tides(")
    assert question.prompt.startswith("You may call these functions")
    for text, right in ((question.answer, 1.0), (question.answer[:-2], 0.0)):
        verdict = task.verify(question, text)
        assert verdict == tasks.Verdict(right, {"correct": right, "well_formed": right})


def test_whole_conversations_are_held_out(tmp_path):
    """The three questions wanted are two of two."""
    records = [published_samples.toolace_record(number) for number in range(8)]
    for record in records:
        record["conversations"] += record["conversations"][:2]
    task = tasks.build("toolace", path=write(tmp_path, records), held_out=3)
    held_out, trained = task.evaluation(99), list(map(task.question, range(12)))
    assert len(held_out) == 4
    ports = [{q.prompt.split("port ")[1][0] for q in side} for side in (held_out, trained)]
    assert not ports[0] & ports[1]
    later = next(question for question in trained if "User: " in question.prompt)
    assert "\n\nAssistant: [Get Tides(" in later.prompt and "\n\nTool: [" in later.prompt
