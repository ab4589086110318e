"""The arm of `time_to_accuracy.py` for TRL: GRPOTrainer with a reward function on a data set of
prompts, as its documentation has it.

Its default objective (DAPO's aggregation, no KL). Set are what the other arms have too (batch,
group, limit, temperature 1, learning rate without a schedule, the order of the questions), and for
speed on a small model no gradient checkpointing and float32 activations.
"""

from __future__ import annotations

from importlib.metadata import version

import torch
from datasets import Dataset
from peer_rl import run_of_arguments
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Steps(TrainerCallback):
    """Tells the run when a step ends."""

    def __init__(self, run):
        self.run = run

    def on_train_begin(self, args, state, control, **_):
        """Starts the clock."""
        self.run.start()

    def on_step_end(self, args, state, control, model=None, **_):
        """Ends the step; a snapshot is a Transformers folder."""
        self.run.step_ended(model.save_pretrained)


def main() -> None:
    """Trains."""
    run = run_of_arguments()
    job = run.job
    settings = GRPOConfig(
        output_dir=job["snapshots"],
        max_steps=job["steps"],
        per_device_train_batch_size=job["rows"],
        gradient_accumulation_steps=job["prompts_per_step"] * job["samples"] // job["rows"],
        num_generations=job["samples"],
        max_completion_length=job["new_tokens"],
        temperature=1.0,
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        beta=0.0,
        gradient_checkpointing=False,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        use_cpu=not torch.cuda.is_available(),
        shuffle_dataset=False,
        seed=job["seed"],
        logging_steps=job["every"],
        save_strategy="no",
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=job["start"],
        reward_funcs=run.reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": run.prompts, "answer": run.answers}),
        processing_class=AutoTokenizer.from_pretrained(job["start"], padding_side="left"),
        callbacks=[Steps(run)],
    )
    trainer._generate_single_turn = run.timed("sampling", trainer._generate_single_turn)
    trainer.train()
    run.write(
        versions=(
            f"trl {version('trl')}, transformers {version('transformers')}, torch"
            f" {torch.__version__}"
        ),
        settings=f"{torch.get_num_threads()} threads, {next(trainer.model.parameters()).dtype}",
    )


if __name__ == "__main__":
    main()
