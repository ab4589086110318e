"""The explorer: from prompts to completions, verified rewards and groups."""

import collections
import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from grre_jax import sampling
from grre_jax.domains import ConfigError
from grre_jax.parallel import mesh as meshes, processes
from grre_jax.random_streams import Purpose, run_key
from grre_jax.rollouts import Group, encoding
from grre_jax.sampling.decoding.slots import SCORES
from grre_jax.sampling.stop_strings import StopStrings
from grre_jax.sampling.turns import SLOTS_PER_ROW
from grre_jax.sampling_params import SamplingConfig
from grre_jax.tasks import Question, Task, Tokenizer
from grre_jax.tasks.environments.environment import InProcessEnvironments
from grre_jax.tasks.judging import InProcess
from grre_jax.tasks.task import is_environment, questions
from grre_jax.training import build
from grre_jax.training.actors.calls import (
    ROWS_WITHOUT_LIMIT,
    call_of,
    check_prompt,
    fitting,
    fitting_questions,
)
from grre_jax.training.actors.trajectories import Play
from grre_jax.training.metrics import Stopwatch

MOST_DRAWN = 2  # calls that wait to be verified; the sampler waits at more
FINISH_NAMES = {sampling.FINISH_STOP: "stop", sampling.FINISH_LENGTH: "length"}


class Asked(NamedTuple):
    """One call: its questions, their positions in the prompt stream, and of all draws the policy
    version and the attempt.
    """

    questions: list[Question]
    positions: list[int]
    version: int
    attempt: int


@dataclasses.dataclass(eq=False)
class Explorer:
    """Samples groups for a task under given parameters.

    Args:
        graph: static half of the model.
        task: source of the questions and of their rewards.
        tokenizer: the model's.
        config: sampling settings.
        mesh: prompts are cut over its data and fsdp axes.
        seed: the run's.
        judge: of completions, or what runs the task's
            environments.
        purpose: purpose of the draws among the run's.
        watch: counts the seconds of preparing weights, of drawing, and of waiting for
            verification.
        rows: completions decoded side by side on each device that prompts are cut over, if
            sampling.max_concurrent is 0.
    """

    graph: Any
    task: Task
    tokenizer: Tokenizer
    config: SamplingConfig
    mesh: Mesh
    seed: int
    judge: InProcess | InProcessEnvironments
    purpose: Purpose = Purpose.EXPLORE
    rows: int = ROWS_WITHOUT_LIMIT
    watch: Stopwatch = dataclasses.field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        # One thread: calls are judged in the order in which they are drawn.
        self._verifier = ThreadPoolExecutor(1, thread_name_prefix="verifier")
        self._waiting: collections.deque[Future[list[Group]]] = collections.deque()

    def questions(self, positions: Sequence[int]) -> list[Question]:
        """Returns the questions of positions of the prompt stream, with prompts within the limit;
        an environment with a longer one fails.

        Raises:
            DataError: no question fits; see `fitting_questions`.
        """
        if is_environment(self.task):
            return list(questions(self.task, positions))
        limit = self.config.max_prompt_tokens
        return fitting_questions(self.task, self.tokenizer, limit, positions)

    def groups(
        self,
        params: Any,
        questions: Sequence[Question],
        positions: Sequence[int],
        *,
        policy_version: int,
        attempt: int = 0,
    ) -> list[Group]:
        """Samples, verifies and records one group per question. A call is verified while the next
        one is sampled.

        The processes of a run sample together. Each encodes and verifies its own rows of every
        call, and all return the groups of all.

        Args:
            params: parameters of the sampling policy.
            questions: the questions.
            positions: their positions in the prompt stream; with `attempt`, the address of every
                draw.
            policy_version: recorded with each completion.
            attempt: another attempt at the same positions gives fresh draws.

        Returns:
            The groups, in the order of the questions.

        Raises:
            DataError: a prompt is longer than sampling.max_prompt_tokens, or has a token outside
                the vocabulary.
        """
        size = self._filled(call_of(self.config, len(questions)).prompts)
        policy = self.policy(params)
        judged = []
        for start in range(0, len(questions), size):
            cut = slice(start, start + size)
            judged.append(
                self.sample(policy, policy_version, positions[cut], size, attempt, questions[cut])
            )
        with self.watch("verification"):
            groups = [group for call in judged for group in call.result()]
        if not processes.many():
            return groups
        parts = processes.records([encoding.encode(group) for group in groups])
        groups = [encoding.decode(data) for part in parts for data in part]
        order = {position: i for i, position in enumerate(positions)}
        # The processes record interleaved rows (`processes.own_rows`).
        return sorted(groups, key=lambda group: order[group.position])

    def policy(self, params: Any) -> sampling.Weights:
        """Returns a policy as `sample` takes it, prepared for decoding.

        Args:
            params: all of its parameters.
        """
        with self.watch("weights"), meshes.use(self.mesh):
            model = nnx.merge(self.graph, params)
            # Else the seconds of preparing would count as those of sampling.
            return jax.block_until_ready(sampling.prepared(model))

    def sample(
        self,
        policy: sampling.Weights,
        version: int,
        positions: Sequence[int],
        size: int,
        attempt: int = 0,
        questions: Sequence[Question] = (),
    ) -> Future[list[Group]]:
        """Samples a call; it is verified while the next one is sampled. At most MOST_DRAWN calls
        wait to be verified when it returns.

        Args:
            policy: from `policy`.
            version: of the policy.
            positions: of the call, in the prompt stream.
            size: shape of the call, in questions; padded to as many on every device.
            attempt: as for `groups`.
            questions: of the call; those of the positions if empty.

        Returns:
            The judged groups; those of this process alone if a run has several.
        """
        questions = list(questions or self.questions(positions))
        call = Asked(questions, list(positions), version, attempt)
        with self.watch("sampling"):
            if is_environment(self.task):
                # Rewards come with the turns: once trajectories are sampled, nothing is left to
                # verify.
                judged: Future[list[Group]] = Future()
                judged.set_result(self._play(policy, call))
                return judged
            prompts, samples = self._draw(policy, call, size)
        judged = self._verifier.submit(self._judged, call, str(policy.dtype), prompts, samples)
        self._waiting.append(judged)
        if len(self._waiting) > MOST_DRAWN:
            wait([self._waiting.popleft()])
        return judged

    def compile(self, params: Any, size: int) -> None:
        """Draws a call of `size` questions and drops it, so that later ones find its programs; not
        for environments.
        """
        call = Asked(self.questions([0]), [0], 0, 0)
        self._draw(self.policy(params), call, size)

    def close(self) -> None:
        """Ends the thread that verifies, once it has verified what was drawn."""
        self._verifier.shutdown()

    def _draw(
        self, weights: sampling.Weights, call: Asked, size: int
    ) -> tuple[list[list[int]], sampling.Samples]:
        """Samples one call, padded to `size` questions.

        Returns:
            Token ids of each question's prompt, and the completions on the host, not yet cut at
            stop strings.
        """
        limit = self.config.max_prompt_tokens
        encoded = []
        for question in call.questions:
            tokens = self.tokenizer.encode_prompt(question)
            check_prompt(question.question_id, tokens, limit, weights.model.config.vocab_size)
            encoded.append(tokens)
        # A short call is padded with its own last prompt, so that it compiles nothing new.
        padding = self._filled(size) - len(encoded)
        prompts, lengths = sampling.pad_prompts(encoded + encoded[-1:] * padding, limit)
        positions = np.pad(call.positions, (0, padding), "edge")
        config = self.config
        cut = meshes.rows(self.mesh)
        with meshes.use(self.mesh):
            samples = sampling.sample(
                weights,
                processes.put(prompts, cut),
                # Stop strings cut the completions later, where every process has its own rows.
                dataclasses.replace(config, stop=()),
                key=run_key(self.seed, self.purpose),
                group_size=config.group_size,
                prompt_lengths=processes.put(lengths, cut),
                eos_ids=self.tokenizer.eos_ids,
                positions=processes.put(positions, cut),
                attempt=call.attempt,
                max_concurrent=config.max_concurrent or self.rows * meshes.row_devices(self.mesh),
                cache_dtype=config.cache_dtype or None,
                routes=config.record_routes,
            )
        return encoded, processes.fetch(samples)

    def _filled(self, size: int) -> int:
        return size + -size % meshes.row_devices(self.mesh)

    def _judged(
        self, call: Asked, dtype: str, prompts: list[list[int]], samples: sampling.Samples
    ) -> list[Group]:
        """Returns the judged groups of a call; runs nothing on the devices, in any thread."""
        decode = self.tokenizer.decode
        host = sampling.cut_at_stops(samples, self.config.stop, decode)
        positions = processes.own_rows(len(host.tokens))
        positions = positions[positions < len(call.questions)].tolist()
        pairs = []
        for i in positions:
            rows = zip(host.tokens[i], host.lengths[i], strict=True)
            texts = [self._cut(decode(tokens[:length])) for tokens, length in rows]
            pairs.append((call.questions[i], texts))
        groups = []
        for i, (question, texts), judged in zip(positions, pairs, self.judge(pairs), strict=True):
            # [samples, tokens]; an array indexed by it has the completions one behind the other,
            # unpadded.
            keep = np.arange(host.tokens.shape[-1]) < host.lengths[i][:, None]
            routes = None
            if host.routes is not None:
                prompt = host.prompt_routes[i, : len(prompts[i])]
                routes = np.concatenate([prompt, host.routes[i][keep]]).reshape(-1)
            group = self._group(
                call,
                i,
                dtype,
                prompt=question.prompt,
                prompt_tokens=prompts[i],
                lengths=host.lengths[i],
                tokens=host.tokens[i][keep],
                texts=texts,
                rewards=judged.rewards,
                components=judged.components,
                extra=judged.extra,
                finish_reasons=[FINISH_NAMES[int(reason)] for reason in host.finish_reasons[i]],
                behavior_logprobs=host.behavior_logprobs[i][keep],
                sampling_logprobs=host.sampling_logprobs[i][keep],
                policy_logprobs=host.policy_logprobs[i][keep],
                routes=routes,
            )
            if question.messages is not None:
                group.extra["prompt_messages"] = list(question.messages)
            groups.append(group)
        return groups

    def _group(self, call: Asked, i: int, dtype: str, **fields: Any) -> Group:
        """Returns the group of a question of a call."""
        question = call.questions[i]
        return Group(
            group_id=f"{call.version}:{call.positions[i]}:{call.attempt}",
            position=call.positions[i],
            attempt=call.attempt,
            task=self.task.name,
            question_id=question.question_id,
            answer=question.answer,
            policy_version=np.full(self.config.group_size, call.version),
            seed=self.seed,
            logprob_dtype=dtype,
            engine=self.config.engine,
            **self.config.distribution_settings(),
            **fields,
        )

    def _play(self, weights: sampling.Weights, call: Asked) -> list[Group]:
        """Samples trajectories in the task's environments."""
        config = self.config
        size = config.group_size
        play = Play(self.task, self.tokenizer, self.judge, self.seed, size, self._cut)
        openings: dict[int, sampling.Opening] = {}
        samples = range(size)
        for position, question in zip(call.positions, call.questions, strict=True):
            prompt = play.open(question, position, call.attempt, config.max_prompt_tokens)
            if prompt is not None:
                vocab = weights.model.config.vocab_size
                check_prompt(question.question_id, prompt, config.max_prompt_tokens, vocab)
                address = sampling.Address(position, call.attempt)
                openings[position] = sampling.Opening(address, prompt, samples)
        # A row that is decoded has a copy of what its slot keeps.
        devices = meshes.row_devices(self.mesh)
        fitting = max(self.rows // (1 + SLOTS_PER_ROW), 1) * devices
        # As many rows as all questions need, so that a failed environment compiles nothing new.
        rows = min(config.max_concurrent or fitting, len(call.questions) * size)
        slots = SLOTS_PER_ROW * rows
        if most := getattr(self.task, "most_environments", 0):
            if most < devices:
                raise ConfigError("task.most_environments", f"at least {devices} devices", most)
            # One environment a slot, and as many slots on every device.
            slots = min(slots, most // devices * devices)
            rows = min(rows, slots)
        trajectories: dict[int, list] = {position: [None] * size for position in openings}
        with meshes.use(self.mesh):
            for trajectory in sampling.sample_trajectories(
                weights,
                openings.values(),
                play.respond,
                sampling.Limits(config.max_turns, config.max_new_tokens),
                config.of_turn,
                key=run_key(self.seed, self.purpose),
                rows=rows,
                slots=slots,
                eos_ids=self.tokenizer.eos_ids,
                cache_dtype=config.cache_dtype or None,
                wait=config.wait_for_answers,
                decode=self.tokenizer.decode,
                prompt_tokens=config.max_prompt_tokens,
            ):
                trajectories[trajectory.address.position][trajectory.sample] = trajectory
                # Its environment does not know that a limit ended the trajectory.
                if trajectory.reason != "done":
                    play.end(trajectory)
        groups = []
        for i, position in enumerate(call.positions):
            fields = play.fields(call.questions[i], position, trajectories.get(position, []))
            fields["prompt_tokens"] = None
            if position in trajectories:
                fields["prompt_tokens"] = openings[position].prompt
                for name in SCORES:
                    row = [trajectory.logprobs[name] for trajectory in trajectories[position]]
                    fields[f"{name}_logprobs"] = np.concatenate(row)
            groups.append(self._group(call, i, str(weights.dtype), **fields))
        return groups

    def scalars(self) -> dict[str, float]:
        """Returns the figures of explorers on a cluster: {}."""
        return {}

    def _cut(self, text: str) -> str:
        """Returns a text up to its first stop string."""
        return StopStrings(self.config.stop, self.tokenizer.decode).cut(text)[0]


def make_explorer(
    parts: build.Parts,
    settings: SamplingConfig | None = None,
    purpose: Purpose = Purpose.EXPLORE,
) -> Explorer:
    """Returns an explorer of a run's questions.

    Args:
        parts: of the run.
        settings: of the calls; the run's own if None.
        purpose: of the draws.
    """
    config = parts.config
    settings = settings or config.sampling
    return Explorer(
        parts.graph,
        parts.task,
        parts.tokenizer,
        settings,
        parts.mesh,
        config.seed,
        parts.judge,
        purpose,
        fitting(config, settings, parts.model.config, parts.mesh),
    )
