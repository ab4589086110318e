"""The configuration's `checkpoint` section."""

from __future__ import annotations

import dataclasses

from grre_jax.domains import Count, Positive, Record


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Record):
    """The configuration's `checkpoint` section: when checkpoints are saved and which are kept.

    Args:
        every: steps between checkpoints; the first and last state are always kept.
        keep: newest checkpoints kept. Those that explorers elsewhere still need stay in any case.
        best: number of checkpoints with the best evaluations that are kept too; every evaluation
            then saves a checkpoint. 0 for none.
        best_metric (a scalar of the evaluation): metric whose largest values are the best: accuracy
            (of sampled completions), greedy_accuracy, or reward for tasks whose verifier gives no
            correctness.
        keep_every: also keep checkpoints at multiples of this many steps; 0 for none.
        export: when the run ends, write the policy as a Hugging Face folder, RUN/model, as `grre
            export` does for any checkpoint.
    """

    every: Positive = 50
    keep: Positive = 2
    best: Count = 0
    best_metric: str = "accuracy"
    keep_every: Count = 0
    export: bool = False
