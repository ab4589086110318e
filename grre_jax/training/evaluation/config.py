"""The configuration's `evaluation` section."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from grre_jax.domains import Count, Positive
from grre_jax.sampling_params import SamplingParams

MAX_QUESTIONS = 100_000


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(SamplingParams):
    """Evaluation on held-out questions.

    Args:
        temperature: divides the logits of the evaluation's draws, independent of training's; 0 is
            greedy decoding. kl_to_start is reported at temperature 1 without truncation only,
            because its estimate needs draws of the policy itself.
        max_new_tokens: longest completion, EOS included; 0 for sampling.max_new_tokens.
        every: steps between evaluations; the first and last step are always evaluated. 0 for those
            two alone.
        questions: held-out questions.
        num_samples: sampled completions per question.
        greedy: also answer each question once by greedy decoding, for greedy_accuracy and
            greedy_reward. It costs one completion per question, none at temperature 0.
        allow_contaminated: allow evaluation on a benchmark split that the training data contains,
            which is refused otherwise.
    """

    max_new_tokens: Count = 0
    every: Count = 20
    questions: Annotated[int, f"[0, {MAX_QUESTIONS}]"] = 256
    num_samples: Positive = 1
    greedy: bool = True
    allow_contaminated: bool = False
