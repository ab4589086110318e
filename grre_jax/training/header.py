"""What a run says of itself before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grre_jax.machine import devices_line
from grre_jax.rollouts.store_path import StorePath
from grre_jax.training import setup
from grre_jax.training.mixture import data_line


def header(parts: setup.Parts, folder: Path | StorePath) -> dict[str, Any]:
    """Lines by name, for `reporting.print_header`."""
    config = parts.config
    numbers = ", ".join(f"{name} {float(value):g}" for name, value in parts.objective.numbers.items())
    return {
        "run": f"{config.name} in {folder}",
        "model": f"{config.model.path or 'new'}, {parts.model.config.num_parameters:,} parameters, {config.model.dtype}",
        "lora": f"rank {lora.rank}, alpha {lora.alpha:g}, on {', '.join(lora.targets)}" if (lora := parts.model.lora) else None,
        "task": parts.task.name,
        "objective": parts.objective.name + (f" ({numbers})" if numbers else ""),
        "data": data_line(config),
        "step": f"{config.training.groups_per_step} groups x {config.sampling.num_samples}, rows of {parts.shape.row_tokens} tokens, learning rate {config.optimizer.learning_rate:g}",
        "devices": devices_line(),
    }
