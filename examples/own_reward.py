"""Trains a language model on your own questions with your own reward function.

grre fetch HuggingFaceTB/SmolLM2-135M-Instruct --output models/smollm2-135m
python examples/own_reward.py              # about 6 minutes on 2 CPU cores
python examples/own_reward.py --questions mine.jsonl    # {"prompt": ..., "answer": ...} per line
"""

import argparse
import random

import grre_jax as grre

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="models/smollm2-135m", help="a folder or a name on the Hub")
parser.add_argument("--questions", help="a JSONL or Parquet file; sums are made if not given")
parser.add_argument("--steps", type=int, default=24, help="updates; 24")
parser.add_argument("--prompts", type=int, default=16, help="questions per update; 16")
parser.add_argument("--run-dir", default="runs/own_reward", help="the run's folder")
args = parser.parse_args()


def sums(count):
    """Returns sums of two digits with their answers."""
    draw = random.Random(0)
    pairs = [(draw.randrange(10), draw.randrange(10)) for _ in range(count)]
    return [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]


# ---- Two reward functions: is the answer there, and is it short? Each is a component of the
# reward. An answer that does not end is left out of the second, which returns None for it.


def right(question, completion):
    """Returns 1 if the last number of the completion is the answer."""
    numbers = "".join(c if c.isdigit() else " " for c in completion).split()
    return {"correct": bool(numbers) and numbers[-1] == question.answer}


def short(question, completion):
    """Returns less for a longer completion; None for one without words."""
    words = len(completion.split())
    return 1 / words if words else None


run = grre.train(
    model=args.model,
    questions=args.questions or sums(400),
    reward=[right, short],
    reward_weights=[1.0, 0.1],
    objective={"name": "rec_oneside_nois", "options": {"epsilon_low": 0.6, "epsilon_high": 2.0}},
    sync_interval=4,
    steps=args.steps,
    run_dir=args.run_dir,
    overwrite=True,
    sampling={"max_new_tokens": 12},
    training={"prompts_per_step": args.prompts, "packs_per_microbatch": 8},
)
print(f"accuracy {run.evaluations[0].get('accuracy')} before, {run.accuracy} after")
print("What is 4 + 4?", run.sample("What is 4 + 4?", temperature=0.0))
