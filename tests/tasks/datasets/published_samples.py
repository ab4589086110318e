"""Small data sets in the formats in which GSM8K, MATH, Guru-Math and ToolACE are published;
their content was written for the tests.
"""

import json
from pathlib import Path

import pyarrow
from pyarrow import parquet

SUBJECTS = ("algebra", "geometry")
SPLITS = (("train", range(6)), ("test", range(10, 13)))


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


def math_record(number: int) -> dict:
    subject = SUBJECTS[number % 2]
    return {
        "problem": f"What is $\\frac{{{number}}}{{2}}+1$?",
        "level": f"Level {number % 5 + 1}",
        "type": subject.title(),
        "solution": f"Adding, $\\frac{{{number}}}{{2}}+1=\\boxed{{\\frac{{{number + 2}}}{{2}}}}$.",
    }


def math_folders(folder: Path) -> Path:
    """The authors' form: train/algebra/0.json."""
    for split, numbers in SPLITS:
        for number in numbers:
            _file(folder / split / SUBJECTS[number % 2] / f"{number}.json").write_text(
                json.dumps(math_record(number))
            )
    return folder


def guru(folder: Path, count: int = 8) -> Path:
    """train/math__combined_54.4k.parquet."""
    rows = [
        {
            "data_source": "math__combined_54.4k",
            "prompt": [
                {
                    "role": "user",
                    "content": f"Find ${n}^2$. Please output the final answer within \\boxed{{}}.",
                }
            ],
            "ability": "math",
            "apply_chat_template": True,
            "reward_model": {"ground_truth": str(n * n), "style": "rule"},
            "extra_info": {"index": n, "split": "train"},
        }
        for n in range(count)
    ]
    path = _file(folder / "train" / "math__combined_54.4k.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def toolace_record(number: int) -> dict:
    tools = [
        {
            "name": "Get Tides",
            "description": "Tides of a port",
            "parameters": {"type": "dict", "properties": {"port": {"type": "string"}}},
        }
    ]
    return {
        "system": (
            f"You may call these functions: {json.dumps(tools)}. Write calls as"
            " [name(argument=value)] and nothing else."
        ),
        "conversations": [
            {"from": "user", "value": f"When is high water in port {number}?"},
            {"from": "assistant", "value": f'[Get Tides(port="{number}")]'},
            {
                "from": "tool",
                "value": json.dumps([{"name": "Get Tides", "results": {"high": f"{number}:00"}}]),
            },
            {"from": "assistant", "value": f"High water is at {number}:00."},
        ],
    }


def toolace(folder: Path, count: int = 8) -> Path:
    """data.json."""
    path = _file(folder / "data.json")
    path.write_text(json.dumps([toolace_record(number) for number in range(count)]))
    return path


def _file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
