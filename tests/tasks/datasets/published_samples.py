"""Small data sets in the formats in which GSM8K, MATH, Guru-Math and ToolACE are published;
their content was written for the tests.
"""

import json
from pathlib import Path

import pyarrow
from pyarrow import parquet

SPLITS = (("train", range(6)), ("test", range(10, 13)))
MATH = r"""{
    "problem": "Write half of $NUMBER$ as a fraction.",
    "level": "Level 1",
    "type": "Algebra",
    "solution": "It is $\\boxed{\\frac{NUMBER}{2}}$."
}"""
GURU = r"""{
    "data_source": "math__combined_54.4k",
    "prompt": [
        {"role": "user", "content": "Find $NUMBER$. Output the final answer within \\boxed{}."}
    ],
    "ability": "math",
    "apply_chat_template": true,
    "reward_model": {"ground_truth": "NUMBER", "style": "rule"},
    "extra_info": {"index": NUMBER, "split": "train"}
}"""
TOOLACE = r"""{
    "system": "You may call these functions: [{\"name\": \"Get Tides\", \"parameters\": {\"type\": \"dict\", \"properties\": {\"port\": {\"type\": \"string\"}}}}]. Write calls as [name(argument=value)] and nothing else.",
    "conversations": [
        {"from": "user", "value": "When is high water in port NUMBER?"},
        {"from": "assistant", "value": "[Get Tides(port=\"NUMBER\")]"},
        {"from": "tool", "value": "[{\"name\": \"Get Tides\", \"results\": {\"high\": \"NUMBER:00\"}}]"},
        {"from": "assistant", "value": "High water is at NUMBER:00."}
    ]
}"""


def gsm8k(folder: Path) -> Path:
    """train.jsonl and test.jsonl."""
    for split, numbers in SPLITS:
        lines = [
            {
                "question": f"Tom has {n} pens and buys 4. How many?",
                "answer": f"He has {n}+4=<<{n}+4={n + 4}>>{n + 4}.\n#### {n + 4}",
            }
            for n in numbers
        ]
        _file(folder / f"{split}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
    return folder


def math_folders(folder: Path) -> Path:
    """The authors' form: train/algebra/0.json."""
    for split, numbers in SPLITS:
        for number in numbers:
            file = _file(folder / split / "algebra" / f"{number}.json")
            file.write_text(MATH.replace("NUMBER", str(number)))
    return folder


def guru(folder: Path, count: int = 8) -> Path:
    """train/math__combined_54.4k.parquet."""
    rows = [json.loads(GURU.replace("NUMBER", str(number))) for number in range(count)]
    path = _file(folder / "train" / "math__combined_54.4k.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def toolace_record(number: int) -> dict:
    return json.loads(TOOLACE.replace("NUMBER", str(number)))


def toolace(folder: Path, count: int = 8) -> Path:
    """data.json."""
    path = _file(folder / "data.json")
    path.write_text(json.dumps([toolace_record(number) for number in range(count)]))
    return path


def _file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def save_to_disk(folder, *tables):
    """Writes tables as datasets.save_to_disk does the parts of a data set, beside a cache that is
    not part of it; returns the last part.
    """
    folder.mkdir(parents=True)
    (folder / "cache-1f.arrow").touch()
    names = [f"data-{number}.arrow" for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pyarrow.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    return folder / names[-1]
