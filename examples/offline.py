"""Off-policy training on completions that another policy wrote, stored with their rewards.

Reads a JSONL file of groups, `{"prompt": ..., "answer": ..., "completions": [{"text": ...,
"reward": ...}, ...]}` per line, into a rollout folder, and trains a new model on it with AsymRE,
which needs rewards and no log-probs. Without `--data` the example writes such a file itself.

    python examples/offline.py                 # about a minute on 2 CPU cores, no download
    python examples/offline.py --data completions.jsonl --algorithm red_weight
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

from grre_jax import models, objectives, rollouts, sampling, tasks

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--data", type=Path, help="a JSONL file of groups; written here if not given")
parser.add_argument("--groups", type=int, default=4000, help="groups to write; 4000")
parser.add_argument("--steps", type=int, default=400, help="updates; 400")
parser.add_argument("--prompts-per-step", type=int, default=32, help="groups per update; 32")
parser.add_argument("--algorithm", default="asymre", help="asymre")
parser.add_argument("--questions", type=int, default=200, help="held-out questions; 200")
args = parser.parse_args()

# ---- The data. The writer works "3+5*2>" out from left to right, modulo 10 ("8,6$"), and writes
# down a random digit instead of a result one time in four.

task = tasks.build("arithmetic", operands=3)
tokenizer = tasks.CharTokenizer()
folder = Path(tempfile.mkdtemp())


def careless_answer(prompt, generator):
    value, results = int(prompt[0]), []
    for operation, digit in zip(prompt[1::2], map(int, prompt[2::2]), strict=False):
        exact = {"+": value + digit, "-": value - digit, "*": value * digit}[operation] % 10
        value = generator.randrange(10) if generator.random() < 0.25 else exact
        results.append(str(value))
    return ",".join(results) + "$"


if args.data is None:
    generator = random.Random(0)
    args.data = folder / "completions.jsonl"
    with args.data.open("w") as file:
        for question in map(task.question, range(args.groups)):
            texts = [careless_answer(question.prompt, generator) for _ in range(4)]
            completions = [{"text": t, "reward": task.verify(question, t).reward} for t in texts]
            line = {"prompt": question.prompt, "answer": question.answer}
            file.write(json.dumps(line | {"completions": completions}) + "\n")

# ---- A rollout folder is what every command of grre_jax reads: sealed, checksummed, and read in an
# order that depends on the seed alone, so that step 300 reads the same groups after a restart.

rollouts.import_rows("jsonl", args.data, folder / "rollouts")
reader = rollouts.read(folder / "rollouts")
order = rollouts.TrainingOrder([(reader, range(len(reader)))], 0, args.prompts_per_step)

# ---- A small new model. For a checkpoint: models.load(FOLDER), tasks.load_tokenizer(FOLDER).

config = models.ModelConfig(
    vocab_size=tokenizer.vocab_size,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    eos_ids=tokenizer.eos_ids,
)
graph, params = nnx.split(models.init(config))  # the graph is static, the parameters a pytree
LENGTH = 16  # tokens of a row: a prompt and its completion, padded on the right


def accuracy(params):
    """Share of sampled answers to held-out questions that are right."""
    questions = task.evaluation(args.questions)
    samples = sampling.sample(
        nnx.merge(graph, params),
        [tokenizer.encode_prompt(question) for question in questions],
        sampling.SamplingParams(max_new_tokens=6),
        group_size=1,
        key=jax.random.key(1),
    )
    tokens, lengths = np.asarray(samples.tokens)[:, 0], np.asarray(samples.lengths)[:, 0]
    texts = [tokenizer.decode(t[:n]) for t, n in zip(tokens, lengths, strict=True)]
    right = [task.verify(q, t).correct is True for q, t in zip(questions, texts, strict=True)]
    return np.mean(right)


def packed(groups):
    """Arrays of some groups: tokens and mask [responses, LENGTH], rewards and ids [responses]."""
    tokens, mask, rewards, ids = [], [], [], []
    for number, group in enumerate(groups):
        prompt = tokenizer.encode_prompt(group.prompt)
        for text, reward in zip(group.texts, group.rewards, strict=True):
            row = prompt + tokenizer.encode_completion(text)
            tokens.append(row + [tokenizer.pad_id] * (LENGTH - len(row)))
            mask.append([len(prompt) <= column < len(row) for column in range(LENGTH)])
            rewards.append(reward)
            ids.append(number)
    return np.array(tokens), np.array(mask), np.array(rewards, np.float32), np.array(ids)


# ---- Training. With beta = 0.5, A = r - (mean(r) - 0.5): right answers are imitated, wrong ones
# hardly pushed away, which is safe on data that is not of this policy.

options = {"beta": 0.5} if args.algorithm == "asymre" else {}
objective = objectives.algorithm(args.algorithm, **options)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))
state = optimizer.init(params)


@jax.jit
def update(params, state, objective, tokens, mask, rewards, ids):
    advantages = objectives.advantages(objective, rewards, ids)
    batch = objectives.padded_batch(advantages=advantages, mask=mask, groups=ids)

    def loss(params):
        logprobs = models.token_logprobs(nnx.merge(graph, params), tokens)
        return objectives.policy_loss(objective, logprobs, batch)

    gradient, metrics = jax.grad(loss, has_aux=True)(params)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, metrics


print(f"accuracy before: {accuracy(params):.1%}")
for step in range(args.steps):
    arrays = tokens, mask, rewards, _ = packed(order[step])
    params, state, metrics = update(params, state, objective, *arrays)
    if step % 100 == 99 or step == args.steps - 1:
        print(f"step {step}: reward of the data {rewards.mean():.3f}, loss {metrics['loss']:.4f}")
print(f"accuracy after: {accuracy(params):.1%}")
