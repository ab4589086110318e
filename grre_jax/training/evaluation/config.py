"""The configuration's `evaluation` section."""

from __future__ import annotations

import dataclasses

from grre_jax.sampling_params import SamplingParams, number


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(SamplingParams):
    """Evaluation on held-out questions.

    Args:
        temperature (at least 0): divides the logits of the evaluation's draws, independent of
            training's; 0 is greedy decoding. kl_to_start is reported at temperature 1 without
            truncation only, because its estimate needs draws of the policy itself.
        max_new_tokens (at least 0): longest completion, EOS included; 0 for
            sampling.max_new_tokens.
        every (at least 0): steps between evaluations; the first and last step are always evaluated.
            0 for those two alone.
        questions (at least 0): held-out questions.
        num_samples (at least 1): sampled completions per question.
        greedy: also answer each question once by greedy decoding, for greedy_accuracy and
            greedy_reward. It costs one completion per question, none at temperature 0.
        allow_contaminated: allow evaluation on a benchmark split that the training data contains,
            which is refused otherwise.
    """

    max_new_tokens: int = number(0, 0)
    every: int = number(20, 0)
    questions: int = number(256, 0)
    num_samples: int = number(1, 1)
    greedy: bool = True
    allow_contaminated: bool = False
