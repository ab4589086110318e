"""Rows of GSM8K's example_model_solutions.jsonl for `grre rollouts import jsonl`.

The file has four models' solutions of each of the 1,319 test questions, with correctness (Cobbe et
al., https://arxiv.org/abs/2110.14168). It is in https://github.com/openai/grade-school-math, under
the MIT license.

    python scripts/gsm8k_solutions.py example_model_solutions.jsonl solutions.jsonl
    grre rollouts import jsonl solutions.jsonl rollouts/gsm8k --task gsm8k --contains gsm8k/test
"""

import argparse
import json
import re
from pathlib import Path

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def row(line: dict, number: int) -> dict:
    """Returns a line's object, of this number from 0, as a group."""
    answer = re.search(r"A:\s*(-?[\d,]*\.?\d+)\s*$", line["ground_truth"])
    others = {name: value for name, value in line.items() if name not in (*MODELS, "question")}
    return others | {
        "group_id": f"gsm8k-solutions:{number + 1}",
        "question_id": f"gsm8k/test/{number}",
        "prompt": line["question"],
        "answer": answer[1].replace(",", ""),
        "completions": [
            {
                "source": model,
                "text": line[model]["solution"],
                "reward": line[model]["is_correct"],
            }
            for model in MODELS
        ],
    }


def main() -> None:
    """Reads the words of the command line, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("solutions", type=Path, help="example_model_solutions.jsonl")
    parser.add_argument("output", type=Path, help="the file of JSON lines to write")
    words = parser.parse_args()
    lines = map(json.loads, words.solutions.read_text(encoding="utf-8").splitlines())
    rows = [json.dumps(row(line, number)) + "\n" for number, line in enumerate(lines)]
    words.output.write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
