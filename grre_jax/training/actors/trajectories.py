"""Trajectories, the completions of tasks that have environments: from turns to fields of groups.

What was sampled is never encoded again: the tokens of a turn are a prefix of those of the next. The
text between two turns is the part of the chat template that stands there, encoded once: what the
rendering of the conversation with the observation has behind the assistant's last turn. So thoughts
stay in the context, also where the template would drop those of earlier turns. A tokenizer without
a chat template has the environment's separator behind each message.
"""

import dataclasses
import functools
import itertools
import math
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from grre_jax import random_streams, sampling
from grre_jax.errors import DataError, UsageError
from grre_jax.random_streams import Purpose
from grre_jax.tasks import Question, Task, Tokenizer, Verdict
from grre_jax.tasks.environments.environment import (
    InProcessEnvironments,
    Opening,
    Reply,
    Trace,
    fingerprint,
)
from grre_jax.tasks.judging import Failure, judgement
from grre_jax.tasks.task import is_environment
from grre_jax.tasks.tokenizers.chat import SAMPLED
from grre_jax.training import build

SPOKEN = {"role": "assistant", "content": SAMPLED}
# Of an environment that did not begin.
NOTHING = sampling.Trajectory(
    sampling.Address(-1), 0, np.zeros(0, np.int32), np.zeros(0, bool), {}, (), "done"
)


def environment_seed(seed: int, position: int, attempt: int) -> int:
    """Returns the seed of the environments of a group, from 0 to 2**32 - 1."""
    key = random_streams.purpose_key(seed, Purpose.ENVIRONMENT)
    for number in (position, attempt):
        key = random_streams.fold_in(key, random_streams.address(number))
    return int(key[0][0])


@dataclasses.dataclass(eq=False)
class _Played:
    """A trajectory that has begun: its turns so far, or why its environment failed."""

    trace: Trace
    opening: Opening | Failure
    before: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    replies: list[Reply] = dataclasses.field(default_factory=list)
    failure: Failure | None = None


@dataclasses.dataclass
class Play:
    """The trajectories of one call of the sampler, in their environments.

    Args:
        task: has the environments.
        tokenizer: the model's.
        runner: runs them.
        seed: the run's.
        samples: trajectories per question.
        stops: cuts stop strings off a turn's text.
    """

    task: Task
    tokenizer: Tokenizer
    runner: InProcessEnvironments
    seed: int
    samples: int
    stops: Callable[[str], str] = lambda text: text

    def __post_init__(self):
        self._played: dict[tuple[int, int], _Played] = {}
        self._encoding = threading.Lock()
        self._name = uuid.uuid4().int  # of others' trajectories the keys differ
        self._separator = getattr(self.task, "separator", "")

    def open(
        self, question: Question, position: int, attempt: int = 0, limit: float = math.inf
    ) -> list[int] | None:
        """Begins the trajectories of a question, and returns their prompt as token ids; None if the
        environment fails or the prompt is over the limit, so that there is nothing to sample.

        Raises:
            UsageError: the prompt cannot be encoded.
        """
        seed = environment_seed(self.seed, position, attempt)
        opening = self.runner.open(question, seed)
        begun = None
        tokens = None
        if not isinstance(opening, Failure):
            # An environment that is made again must begin with the same prompt.
            begun = fingerprint(opening.messages)
            tokens = self.opening_tokens(opening)
            if len(tokens) > limit:
                opening = Failure("invalid", f"its prompt has {len(tokens)} tokens")
                tokens = None
        failure = opening if isinstance(opening, Failure) else None
        for sample in range(self.samples):
            trace = Trace((self._name, position, attempt, sample), question, seed, begun)
            self._played[position, sample] = _Played(trace, opening, failure=failure)
        return tokens

    def respond(
        self, address: Any, sample: int, turn: int, tokens: list[int]
    ) -> Future[list[int] | None]:
        """Steps the environment of a trajectory; see `sampling.sample_trajectories`."""
        played = self._played[address.position, sample]
        done = Future()
        ended = tokens[-1] in self.tokenizer.eos_ids
        # `ended` counts as 0 or 1: the token that ends the turn is not part of its text.
        text = self.stops(self.tokenizer.decode(tokens[: len(tokens) - ended]))

        def answered(future: Future[Reply | Failure]) -> None:
            try:
                done.set_result(self._observed(played, text, ended, future.result()))
            except BaseException as error:  # raised where the trajectories are sampled
                done.set_exception(error)

        # A copy of all that went before, by which a lost environment is made again; the list grows.
        self.runner.step(played.trace, list(played.before), text).add_done_callback(answered)
        return done

    def _observed(
        self, played: _Played, text: str, ended: bool, reply: Reply | Failure
    ) -> list[int] | None:
        if isinstance(reply, Failure):
            played.failure = reply
            return None
        played.before.append((text, reply.observation))
        played.replies.append(reply)
        if reply.done:
            return None
        try:
            with self._encoding:  # the answers of several processes come in several threads
                tokens = self.observation_tokens(played.opening, played.replies, ended=ended)
        except UsageError as error:  # the opening showed that the template does it
            played.failure = Failure("invalid", f"the observation cannot be encoded ({error})")
            # It is not over: a later trajectory of the same address would go on in it.
            self.runner.end(played.trace)
            return None
        return tokens

    def opening_tokens(self, opening: Opening) -> list[int]:
        """Returns the ids of the first messages, up to where the policy begins.

        Raises:
            UsageError: the chat template rewrites the opening, or leaves out a message or the
                tools; or a text cannot be encoded.
        """
        if not getattr(self.tokenizer, "has_template", False):
            texts = (message["content"] + self._separator for message in opening.messages)
            return self.tokenizer.encode_prompt("".join(texts))
        for called in {False, bool(opening.tools)}:
            self.observation_tokens(opening, [Reply("x", 0.0, False, called)] * 2)
        return self.tokenizer.encode_messages(opening.messages, tools=opening.tools)

    def observation_tokens(
        self, opening: Opening, replies: Sequence[Reply], *, ended: bool = True
    ) -> list[int]:
        """Returns the ids between the policy's last turn and its next.

        Args:
            opening: of the trajectory.
            replies: the environment's so far, the last of which is encoded.
            ended: the turn ended with an end token, which is then not written again.

        Raises:
            UsageError: as for `opening_tokens`.
        """
        if not getattr(self.tokenizer, "has_template", False):
            plain = getattr(self.tokenizer, "encode_text", None)  # no beginning-of-text token
            encode = (
                functools.partial(plain, special=False) if plain else self.tokenizer.encode_prompt
            )
            return encode(replies[-1].observation + self._separator)
        turns = []
        for reply in replies:
            role = "tool" if reply.called else "user"
            turns += [SPOKEN, {"role": role, "content": reply.observation}]
        return self.tokenizer.encode_observation(
            [*opening.messages, *turns], tools=opening.tools, ended=ended
        )

    def end(self, trajectory: sampling.Trajectory) -> None:
        """Ends the environment of a trajectory that a limit cut, before another begins."""
        self.runner.end(self._played[trajectory.address.position, trajectory.sample].trace)

    def demonstration(
        self, question: Question, position: int, turns: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the fields of a group of one trajectory, whose turns are given as texts.

        Raises:
            UsageError: a text cannot be encoded.
            DataError: the environment fails.
        """
        prompt = self.open(question, position)
        address = sampling.Address(position)
        played = self._played[position, 0]
        tokens: list[int] = []
        mask: list[bool] = []
        spans: list[sampling.Turn] = []
        for turn, text in enumerate(turns if prompt is not None else ()):
            written = self.tokenizer.encode_completion(text)
            spans.append(sampling.Turn(len(tokens), len(tokens) + len(written), True))
            tokens += written
            mask += [True] * len(written)
            observation = self.respond(address, 0, turn, written).result()
            if observation is None:
                break
            # No turn follows the last observation, so that it is left out.
            if turn + 1 < len(turns):
                tokens += observation
                mask += [False] * len(observation)
        else:
            # The turns did not end it, and the demonstration may be made again.
            self.runner.end(played.trace)
        if played.failure:
            raise DataError(
                f"the environment of task {self.task.name} failed in the demonstration of question"
                f" {question.question_id} ({played.failure.kind}: {played.failure.reason})"
            )
        trajectory = sampling.Trajectory(
            address, 0, np.array(tokens, np.int32), np.array(mask, bool), {}, tuple(spans), "done"
        )
        return self.fields(question, position, [trajectory]) | {"prompt_tokens": prompt}

    def fields(
        self, question: Question, position: int, trajectories: Sequence[sampling.Trajectory]
    ) -> dict[str, Any]:
        """Returns the fields of the group of a question's finished trajectories, in the order of
        their samples; of an environment that did not begin, completions without tokens.
        """
        plays = [self._played.pop((position, sample)) for sample in range(self.samples)]
        opening = plays[0].opening
        messages = [] if isinstance(opening, Failure) else opening.messages
        if isinstance(opening, Failure):
            trajectories = [NOTHING] * self.samples
        rewards = [played.replies[-1].components if played.replies else {} for played in plays]
        # A component that one lacks, as it was cut by a limit, does not apply to it.
        absent = {name: None for components in rewards for name in components}
        outcomes = [
            played.failure or Verdict(sum(r.reward for r in played.replies), absent | components)
            for played, components in zip(plays, rewards, strict=True)
        ]
        judged = judgement(self.task.name, question, outcomes)
        texts: list[str] = []
        characters: list[int] = []
        turn_rewards: list[float] = []
        for played, trajectory in zip(plays, trajectories, strict=True):
            ends = [0, *_turn_ends(trajectory), len(trajectory.tokens)]
            pieces = [
                self.tokenizer.decode(trajectory.tokens[start:end])
                for start, end in itertools.pairwise(ends)
            ]
            # Decoded by turn, so that the offsets in characters below are those of the tokens'
            # turns.
            texts.append("".join(pieces))
            characters += itertools.accumulate(map(len, pieces[:-1]))
            # A turn that a limit cut, or in which the environment failed, has no reply.
            without_reply = len(trajectory.turns) - len(played.replies)
            turn_rewards += [reply.reward for reply in played.replies] + [0.0] * without_reply
        return {
            "prompt": "\n".join(message["content"] for message in messages),
            "texts": texts,
            "lengths": [len(trajectory.tokens) for trajectory in trajectories],
            "tokens": np.concatenate([trajectory.tokens for trajectory in trajectories]),
            "mask": np.concatenate([trajectory.mask for trajectory in trajectories]),
            "rewards": judged.rewards,
            "components": judged.components,
            "extra": judged.extra,
            "finish_reasons": [
                "failed" if p.failure else t.reason
                for p, t in zip(plays, trajectories, strict=True)
            ],
            "turn_counts": [len(trajectory.turns) for trajectory in trajectories],
            "turn_tokens": list(itertools.chain.from_iterable(map(_turn_ends, trajectories))),
            "turn_texts": characters,
            "turn_rewards": turn_rewards,
            "environment": self.task.name,
            "environment_version": getattr(self.task, "version", ""),
            "environment_seed": plays[0].trace.seed,
        }


def _turn_ends(trajectory: sampling.Trajectory) -> list[int]:
    """Returns first and last + 1 of the tokens of each turn, turn after turn."""
    return [end for turn in trajectory.turns for end in (turn.start, turn.end)]


def prompts(
    parts: build.Parts, questions: Iterable[Question]
) -> Iterator[tuple[Question, list[int]]]:
    """Yields questions with their prompts as token ids, of a task with environments or without;
    not those whose environment fails.

    Args:
        parts: have the task, its judge and the tokenizer.
        questions: of the task.

    Raises:
        UsageError: a prompt cannot be encoded.
    """
    play = None
    if is_environment(parts.task):
        play = Play(parts.task, parts.tokenizer, parts.judge, parts.config.seed, 0)
    for position, question in enumerate(questions):
        encode = parts.tokenizer.encode_prompt
        encoded = play.open(question, position) if play else encode(question)
        if encoded is not None:
            yield question, encoded
