"""Prompt sources and verifiers: the policy's questions, and the judges of its answers.

    task = tasks.build("arithmetic", seed=0)
    question = task.question(0)
    verdict = task.verify(question, question.demonstration)

Importing this package loads neither jax nor any tokenizer library.
"""

from grre_jax.tasks.task import (
    Question as Question,
    Task as Task,
    Verdict as Verdict,
    build as build,
    names as names,
)
from grre_jax.tasks.tokenizers.characters import (
    CharTokenizer as CharTokenizer,
    Tokenizer as Tokenizer,
)
from grre_jax.tasks.tokenizers.chat import (
    ChatTokenizer as ChatTokenizer,
    load_tokenizer as load_tokenizer,
)
