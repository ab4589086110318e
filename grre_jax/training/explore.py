"""The explorer: prompts to completions to verified rewards to sealed rollout shards."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from grre_jax import rollouts, sampling
from grre_jax.config import SamplingConfig
from grre_jax.errors import DataError
from grre_jax.parallel import mesh as meshes
from grre_jax.parallel import processes
from grre_jax.rollouts import Group, record
from grre_jax.tasks import Question, Task, Tokenizer
from grre_jax.training.draws import Purpose, run_key

GROUPS_PER_DATASET = 2048  # bounds what a crash can cost and what is held in memory; a policy version may fill several data sets
SHARED_FOLDER_SECONDS = 90  # a network file system may show a new file only after its caches have expired
FINISH_NAMES = {sampling.FINISH_STOP: "stop", sampling.FINISH_LENGTH: "length"}


@dataclasses.dataclass(frozen=True)
class Explorer:
    """Samples groups for a task under given parameters.

    Args:
        graph: static half of the model.
        task, tokenizer: what is asked, and how text becomes tokens.
        config: sampling settings.
        mesh: prompts are cut over its data and fsdp axes.
        seed: the run's.
        purpose: which of the run's draws these are.
    """

    graph: Any
    task: Task
    tokenizer: Tokenizer
    config: SamplingConfig
    mesh: Mesh
    seed: int
    purpose: Purpose = Purpose.EXPLORE

    def groups(
        self, params: Any, questions: Sequence[Question], positions: Sequence[int], *, policy_version: int, attempt: int = 0
    ) -> list[Group]:
        """Samples, verifies and records one group a question.

        The processes of a run sample together, each its own rows of every call: each encodes, verifies and returns those.

        Args:
            params: parameters of the sampling policy.
            questions: what is asked.
            positions: their places in the prompt stream; with `attempt`, the address of every draw.
            policy_version: recorded with each completion.
            attempt: another attempt at the same positions draws anew.

        Returns:
            The groups of this process, in the order of the questions: all of them where it is alone.

        Raises:
            DataError: a prompt is longer than sampling.max_prompt_tokens.
        """
        model = nnx.merge(self.graph, params)
        devices, cut = meshes.row_devices(self.mesh), meshes.rows(self.mesh)
        size = -(-min(self.config.prompts_per_call, len(questions)) // devices) * devices
        with meshes.use(self.mesh):
            weights = sampling.prepared(model)
        groups = []
        for start in range(0, len(questions), size):
            chunk, places = list(questions[start : start + size]), list(positions[start : start + size])
            live = len(chunk)
            # A short last chunk is filled up with its own last prompt, so that it compiles nothing new.
            chunk, places = chunk + chunk[-1:] * (size - live), places + places[-1:] * (size - live)
            prompts, lengths = self._prompts(chunk, processes.held_rows(cut, (size,)))
            arrays = [processes.put(x, cut) for x in (prompts, lengths, np.asarray(places))]
            with meshes.use(self.mesh):
                samples = sampling.sample(
                    weights,
                    arrays[0],
                    num_samples=self.config.num_samples,
                    max_new_tokens=self.config.max_new_tokens,
                    key=run_key(self.seed, self.purpose),
                    prompt_lengths=arrays[1],
                    eos_ids=self.tokenizer.eos_ids,
                    temperature=self.config.temperature,
                    top_k=self.config.top_k,
                    top_p=self.config.top_p,
                    positions=arrays[2],
                    attempt=attempt,
                    slots=self.config.slots or None,
                    cache_dtype=self.config.cache_dtype or None,
                )
            own = processes.own_rows(cut, (size,))
            host = processes.fetch_rows(samples, cut)
            rewards = self._in_graph_rewards(prompts, lengths, host, own)
            groups += self._record(chunk, places, prompts, lengths, host, rewards, own[own < live], policy_version, attempt)
        return groups

    def all_groups(
        self, params: Any, questions: Sequence[Question], positions: Sequence[int], *, policy_version: int, attempt: int = 0
    ) -> list[Group]:
        """As `groups`, but every process returns the groups of all, in the order of the questions."""
        mine = self.groups(params, questions, positions, policy_version=policy_version, attempt=attempt)
        if not processes.many():
            return mine
        found = [record.decode(data) for part in processes.records([record.encode(group) for group in mine]) for data in part]
        order = {position: i for i, position in enumerate(positions)}
        return sorted(found, key=lambda group: order[group.position])

    def _prompts(self, questions: Sequence[Question], held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[questions, max_prompt_tokens] prompts and their [questions] lengths, of the questions held here; one token 0 for others."""
        limit = self.config.max_prompt_tokens
        prompts, lengths = np.zeros((len(questions), limit), np.int32), np.ones(len(questions), np.int32)
        encoded = [self.tokenizer.encode_prompt(questions[i]) for i in np.flatnonzero(held)]
        for i, tokens in zip(np.flatnonzero(held), encoded, strict=True):
            if len(tokens) > limit:
                raise DataError(
                    f"prompt {questions[i].question_id} has {len(tokens)} tokens, over sampling.max_prompt_tokens = {limit}: raise the limit or leave the question out"
                )
        prompts[held], lengths[held] = sampling.pad_prompts(encoded, limit)
        return prompts, lengths

    def _record(self, questions, positions, prompts, prompt_lengths, host, rewards, own, policy_version, attempt) -> list[Group]:
        count, groups = self.config.num_samples, []
        for i in own:
            question = questions[i]
            lengths = host.lengths[i]
            keep = np.arange(host.tokens.shape[-1]) < lengths[:, None]
            texts = [self.tokenizer.decode(host.tokens[i, k, : lengths[k]]) for k in range(count)]
            if rewards is None:
                verdicts = [self.task.verify(question, text) for text in texts]
                values = np.array([v.reward for v in verdicts], np.float32)
                components = {name: np.array([v.components[name] for v in verdicts], np.float32) for name in verdicts[0].components}
            else:
                values, components = rewards[i], {}
            logprobs = {f"{name}_logprobs": getattr(host, f"{name}_logprobs")[i][keep] for name in ("behavior", "sampling", "policy")}
            groups.append(
                Group(
                    group_id=f"{policy_version}:{positions[i]}:{attempt}",
                    position=int(positions[i]),
                    attempt=attempt,
                    task=self.task.name,
                    question_id=question.question_id,
                    prompt=question.prompt,
                    answer=question.answer,
                    prompt_tokens=prompts[i, : prompt_lengths[i]],
                    lengths=lengths,
                    tokens=host.tokens[i][keep],
                    texts=texts,
                    rewards=values,
                    components=components,
                    finish_reasons=[FINISH_NAMES[int(reason)] for reason in host.finish_reasons[i]],
                    policy_version=np.full(count, policy_version),
                    temperature=self.config.temperature,
                    top_k=self.config.top_k,
                    top_p=self.config.top_p,
                    seed=self.seed,
                    **logprobs,
                )
            )
        return groups

    @cached_property
    def _reward(self) -> Callable | None:
        """The task's in-graph reward, if it has one for this tokenizer; kept here, since a bound method is new to `jax.jit` each time it is looked up."""
        reward = getattr(self.task, "batch_rewards", None)
        # Token arrays mean what the task thinks only in the task's own tokenizer; under a pretrained model's, text is verified.
        return None if reward is None or self.task.tokenizer.fingerprint != self.tokenizer.fingerprint else jax.jit(reward)

    def _in_graph_rewards(self, prompts, prompt_lengths, host, own) -> np.ndarray | None:
        """[prompts, samples] rewards of the own rows (0 elsewhere) computed on the device, where the task can; else None."""
        if self._reward is None:
            return None
        batch, count, time = host.tokens.shape
        rewards = np.zeros((batch, count), np.float32)
        if len(own):
            rewards[own] = np.asarray(
                self._reward(
                    np.repeat(prompts[own], count, 0),
                    np.repeat(prompt_lengths[own], count),
                    host.tokens[own].reshape(-1, time),
                    host.lengths[own].reshape(-1),
                )
            ).reshape(-1, count)
        return rewards


def explore(
    explorer: Explorer,
    params: Any,
    *,
    folder: Any,
    reader: rollouts.RolloutReader,
    positions: Sequence[int],
    policy_version: int,
    metadata: dict[str, Any],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Samples the groups of `positions` that the rollout folder does not hold yet and seals them, a few data sets at most.

    What a killed run had already sealed is kept: draws are addressed, so it is what would be drawn again. Each process of a run seals what it sampled; the
    reader of each then finds the groups of all.

    Args:
        explorer: who samples.
        params: of policy version `policy_version`.
        folder: the rollout folder.
        reader: a reader of it; refreshed here.
        positions: places in the prompt stream.
        policy_version: recorded with the data.
        metadata: provenance of the data sets.
        between: called after each sealed data set; it may raise to stop.

    Raises:
        DataError: a data set cannot be written, or the processes of the run do not see each other's.
    """
    writer = f"explorer-{jax.process_index()}" if processes.many() else "explorer"
    size = GROUPS_PER_DATASET * jax.process_count()
    missing = [p for p in positions if reader.find(p, policy_version) is None]
    for start in range(0, len(missing), size):
        chunk = missing[start : start + size]
        groups = explorer.groups(params, [explorer.task.question(p) for p in chunk], chunk, policy_version=policy_version)
        if groups:
            rollouts.write(folder, groups, writer=writer, policy_version=policy_version, metadata=metadata)
        between()
    refresh_together(reader)


def refresh_together(reader: rollouts.RolloutReader) -> None:
    """Takes in what the processes of a run have sealed, once all of them have; afterwards each sees the same groups.

    Raises:
        DataError: they do not see the same: the folder is not one folder to all of them.
    """
    processes.wait_for_all("rollouts sealed")
    reader.refresh()
    until = time.monotonic() + SHARED_FOLDER_SECONDS
    while True:
        seen, late = processes.numbers(len(reader)), processes.numbers(int(time.monotonic() > until))
        if (seen == seen[0]).all():
            return
        if late.any():
            raise DataError(
                f"the processes see {', '.join(map(str, seen))} groups in {reader.folder}: the run folder must lie on storage that all of them share; choose another with --run-dir"
            )
        time.sleep(1)
        reader.refresh()
