"""The worker of `peers.py` for TRL: GRPOTrainer's own training step on a transformers Llama in
float32, torch on all cores.

The trainer is built for real (a tokenizer of nothing but numbers, a reward function that is never
asked) and `training_step`, with TRL's loss, fused head, metrics and Accelerate's backward pass, is
called on a finished batch in place of sampling one. Around it stands what the Transformers loop
does: clip, the trainer's own AdamW, zero the gradients. Settings for speed on a CPU: sdpa
attention, no gradient checkpointing, prompt and completion padded to the longest of the batch as
TRL does, and the decoder compiled if a C++ compiler is there and a step is faster with it; what
came out is part of the answer.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from importlib.metadata import version

import tokenizers
import torch
from datasets import Dataset
from peer_serve import END, PAD, padded_rows, serve
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer


class Trainer(GRPOTrainer):
    """A GRPOTrainer that is handed its batches."""

    def _prepare_inputs(self, batch):
        return batch


def make_model(shape: dict[str, int]) -> LlamaForCausalLM:
    """A tied float32 model, drawn as Transformers does."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        num_key_value_heads=shape["num_kv_heads"],
        head_dim=shape["head_dim"],
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        dtype="float32",
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=END,
    )
    return LlamaForCausalLM(config)


def make_trainer(model: LlamaForCausalLM, rows: int, samples: int) -> Trainer:
    """The trainer for batches of `rows` completions, `samples` a prompt."""
    words = {f"<{i}>": i for i in range(model.config.vocab_size)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<0>"))
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=rows,
        num_generations=samples,
        learning_rate=1e-6,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
    )
    return Trainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "<2>"}] * rows),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=backend, pad_token=f"<{PAD}>", eos_token=f"<{END}>"
        ),
    )


class Work:
    """The trainer and its batch; see `peer_serve.serve`."""

    def __init__(self, job):
        torch.set_num_threads(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        )
        rows = padded_rows(job["data"])
        self.model = make_model(job["model"])
        self.trainer = make_trainer(self.model, len(rows.prompts), job["work"]["samples"])
        self.trainer.current_gradient_accumulation_steps = (
            1  # the loop that is left out would set it
        )
        self.optimizer = self.trainer.create_optimizer()
        self.model.train()
        self.batch = {
            "prompt_ids": torch.as_tensor(rows.prompts, dtype=torch.long),
            "prompt_mask": torch.ones(rows.prompts.shape, dtype=torch.long),
            "completion_ids": torch.as_tensor(rows.completions, dtype=torch.long),
            "completion_mask": torch.as_tensor(rows.mask, dtype=torch.long),
            "advantages": torch.as_tensor(rows.advantages),
            "old_per_token_logps": torch.as_tensor(rows.old_logprobs),
            "num_items_in_batch": torch.as_tensor(rows.mask.sum()),
        }
        seconds = self.steps(1)["seconds"]
        compiled = (
            bool(shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"))
            and self._compile()
        )
        self.about = {
            "parameters": sum(x.numel() for x in self.model.parameters()),
            "rows": [len(rows.prompts), rows.prompts.shape[1] + rows.completions.shape[1]],
            "first_step_seconds": seconds,
            "versions": (
                f"trl {version('trl')}, transformers {version('transformers')}, torch"
                f" {torch.__version__}"
            ),
            "settings": (
                f"{torch.get_num_threads()} threads, sdpa,"
                f" {'torch.compile' if compiled else 'eager'}, {type(self.optimizer).__name__}"
            ),
        }

    def _compile(self) -> bool:
        """Compiles the decoder where that makes a step faster; says whether it did."""
        eager = self._fastest()
        self.model.model.compile()
        self.steps(2)
        if self._fastest() < eager:
            return True
        torch.compiler.set_stance("force_eager")
        return False

    def _fastest(self) -> float:
        return min(self.steps(1)["seconds"] for _ in range(4))

    def steps(self, count: int) -> dict[str, float]:
        """`count` updates."""
        start = time.perf_counter()
        for _ in range(count):
            loss = self.trainer.training_step(self.model, self.batch, None)
            self.trainer.accelerator.clip_grad_norm_(
                self.model.parameters(), self.trainer.args.max_grad_norm
            )
            self.optimizer.step()
            self.model.zero_grad()
        return {"seconds": time.perf_counter() - start, "loss": loss.item()}


if __name__ == "__main__":
    serve(Work)
