"""The two halves of a run as separate processes: `learn` trains, `explore_run` samples.

They communicate through the run's folder alone:

RUN/checkpoints   policies of the learner, which explorers wait for
RUN/rollouts      groups of the explorers, which the learner waits for
RUN/explorers     leases of the explorers; RUN/learner.json, the learner's
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optax

from grre_jax import rollouts
from grre_jax.console import make_console
from grre_jax.errors import DataError, UsageError
from grre_jax.parallel import processes
from grre_jax.storage.remote import is_url
from grre_jax.training import build, loop, preflight, run_folder
from grre_jax.training import state as states
from grre_jax.training.actors import lease, registry
from grre_jax.training.actors.calls import call_of
from grre_jax.training.actors.exploration import explore, shared_calls
from grre_jax.training.actors.explorer import make_explorer
from grre_jax.training.checkpoints.folder import CheckpointGone, listed, read_params
from grre_jax.training.config.run import Config
from grre_jax.training.data import dynamic_sampling
from grre_jax.training.data.checks import check_roles
from grre_jax.training.data.choose import Newest
from grre_jax.training.data.sources import Source
from grre_jax.training.runtime.stopping import StopRequest
from grre_jax.training.runtime.waiting import wait_until


def learn(
    config: Config, *, free: bool = False, overwrite: bool = False, console: Any = None
) -> Path:
    """Trains on groups that explorers sample; continues the run if the folder contains it.

    Args:
        config: the run.
        free: take groups that are recent enough rather than those that the schedule names.
        overwrite: replace the run in the folder.
        console: a rich console; standard output if None.

    Returns:
        The run's folder, as `loop.train`.

    Raises:
        UsageError: as `loop.train`; or explorers have nothing to do.
        DataError: as `loop.train`.
        Stopped: after SIGTERM or SIGINT, once a checkpoint is saved.
    """
    _require_path(config)
    check_roles(config, free)
    begun = (config.folder / "config.json").is_file()
    resume = bool((processes.gather_ints(int(begun)) > 0).any()) and not overwrite
    role = loop.Role(samples=False, free=free)
    return loop.run(config, role, resume=resume, overwrite=overwrite, console=console)


@dataclasses.dataclass(frozen=True)
class ExplorerRole:
    """One explorer of a run.

    Args:
        name: names its data sets' writer and its file in RUN/explorers.
        index: of its share of the calls, from 0.
        count: number of explorers that share the run.
        free: sample with the newest policy that the bound allows rather than the one that the
            schedule names.

    Raises:
        UsageError: a value outside its domain.
    """

    name: str
    index: int = 0
    count: int = 1
    free: bool = False

    def __post_init__(self):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}", self.name):
            raise UsageError(
                f"--explorer-name {self.name!r} cannot be used: give 1 to 50 letters, digits, '.',"
                " '-' and '_', the first a letter or digit"
            )
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"--index {self.index} of --explorers {self.count}: the index counts from 0 to the"
                " number of explorers less 1"
            )


def explore_run(config: Config, role: ExplorerRole, *, console: Any = None) -> int:
    """Samples an explorer's share of a run, from the state of its folder to the end of the run.

    The learner may be started before or after.

    Args:
        config: the run.
        role: of this process.
        console: a rich console; standard output if None.

    Returns:
        The number of groups that this process sealed.

    Raises:
        UsageError: the folder's run has another configuration; or another explorer with that name,
            or with another number of explorers, works there.
        DataError: a checkpoint or the rollout folder is damaged.
        Stopped: after SIGTERM or SIGINT; sealed groups stay.
    """
    first = processes.is_first()
    console = console if console and first else make_console(quiet=not first)
    _require_path(config)
    check_roles(config, role.free)
    _check_role(config, role)
    parts = build.build(config)
    preflight.check_prompts(parts)  # before the wait for a learner
    if role.free:
        oldest = config.regime.oldest(config.training.steps)
        console.print(
            f"--free-running: takes the newest policy that is at most {oldest} updates old where"
            " its data is trained on; which one that is depends on the clock, so this run is not"
            " repeatable"
        )
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        stack.callback(parts.judge.close)

        def between() -> None:
            if stop.agreed():
                raise stop.stopped(
                    f"as explorer {role.name}; what it had sealed is kept: start it again to go on"
                )

        made = [config.folder / name for name in ("config.json", registry.RUN_FILE)]
        wait_until(
            lambda: all(file.is_file() for file in made),
            lambda: f"a learner to make {config.folder}",
            say=console.print,
            between=between,
        )
        parts = parts.dated(run_folder.stored_date(config.folder))
        work = _Explorer(parts, role, stack, console, between)
        sealed = work.freely() if role.free else work.by_schedule()
        work.check()
        console.print(
            f"explorer {role.name} has nothing left to sample of"
            f" {work.parts.config.training.steps} steps: {sealed} groups sealed by this process"
        )
    return sealed


def _require_path(config: Config) -> None:
    """Raises UsageError if the run's folder is in an object store."""
    if is_url(config.location):
        raise UsageError(
            f"run_dir: expected a folder on a disk that the learner and all explorers share, got"
            f" {config.location}; `grre train` trains into an object store"
        )


def _check_role(config: Config, role: ExplorerRole) -> None:
    """Raises UsageError if several explorers would share calls of whole versions, or weights cannot
    be swapped.
    """
    if role.count > 1 and not config.sampling.prompts_per_call:
        raise UsageError(
            "sampling.prompts_per_call: 0 makes one call of all that a version samples, which"
            f" --explorers {role.count} cannot share: give the learner and all explorers a number"
            f" of prompts, such as {max(config.training.prompts_per_step // role.count, 1)}"
        )


class _Explorer:
    """An explorer at work in a run's folder."""

    def __init__(
        self,
        parts: build.Parts,
        role: ExplorerRole,
        stack: contextlib.ExitStack,
        console: Any,
        between: Callable[[], None],
    ):
        """Takes the role in the run's folder until `stack` ends, with as many steps as the learner
        has.

        Raises:
            UsageError: the folder's run, its learner or another explorer does not fit.
            DataError: the folder's configuration cannot be read.
        """
        self.role, self.console, self.between = role, console, between
        self.folder = parts.config.folder
        # The identifier is read before the configuration, so that a replacement in between is
        # noticed.
        self.run = registry.run_id(self.folder)
        steps = run_folder.require_same_run(parts.config)
        self.held = processes.on_first(lambda: self._hold(stack))
        (self.folder / "rollouts").mkdir(exist_ok=True)
        # Only parameters are read: the optimizer has no state.
        graph, state = states.create(parts.model, optax.identity(), parts.mesh)
        self.explorer, self._like = make_explorer(parts, graph), state.params
        training = dataclasses.replace(parts.config.training, steps=steps)
        config = dataclasses.replace(parts.config, training=training)
        self.parts = dataclasses.replace(parts, config=config)
        self.reader = rollouts.read(self.folder / "rollouts")
        self.source = Source(self.reader)
        self._params: tuple[int, Any] = (-1, None)

    def _hold(self, stack: contextlib.ExitStack) -> lease.Lease:
        """Takes the explorer's name until `stack` ends."""
        registry.require_same_draws(self.folder)
        role, share = self.role, {"index": self.role.index, "explorers": self.role.count}
        file = self.folder / "explorers" / f"{role.name}.json"
        who, details = f"an explorer named {role.name}", share | {"free_running": role.free}
        held = stack.enter_context(lease.Lease(file, who, console=self.console, **details))
        registry.refuse_explorer(
            self.folder, role.name, *share.values(), free=role.free, console=self.console
        )
        return held

    def by_schedule(self) -> int:
        """Samples its calls of every version, in order, each with the version that the schedule
        names. Returns the number of groups that it sealed.
        """
        config, sealed = self.parts.config, 0
        rounds = config.data.dynamic_sampling
        for version in range(config.training.steps):
            positions = config.schedule.sampled(version, config.training.steps)
            size = call_of(config.sampling, len(positions)).prompts
            calls = shared_calls(positions, size, self.role.index, self.role.count)
            own = [position for call in calls for position in call]
            while self._missing(own, version):
                self._await(
                    lambda version=version: max(self._listed(), default=-1) >= version,
                    f"policy version {version}",
                )
                self.reader.refresh()
                try:
                    params = self._read(version)
                except CheckpointGone as error:
                    # The learner may remove it once all of its positions are sealed.
                    registry.require_run(self.folder, self.run)
                    self.reader.refresh()
                    if self._missing(own, version):
                        raise DataError(
                            f"{error}, and {self.reader.folder} lacks groups that this version was"
                            " to sample: restore it, or start the run again"
                        ) from error
                    break
                sealed += self._sample(params, version, calls, size, rounds)
        return sealed

    def _listed(self) -> list[int]:
        return listed(self.folder / "checkpoints")

    def _missing(self, positions: list[int], version: int) -> dict[int, list[int]]:
        rounds = self.parts.config.data.dynamic_sampling
        addresses = ((position, version) for position in positions)
        return dynamic_sampling.missing(self.source, addresses, rounds, skip_damaged=True)

    def freely(self) -> int:
        """Samples its calls, in order, each with the newest version within the bound.

        Returns the number of groups that it sealed.
        """
        config, sealed = self.parts.config, 0
        steps, regime = config.training.steps, config.regime
        data = Newest(self.source, config.schedule, steps)
        for step in range(0, steps, regime.reuse):
            positions, allowed = config.schedule(step).fresh, regime.window(step, steps)
            size = call_of(config.sampling, len(positions)).prompts
            for call in shared_calls(positions, size, self.role.index, self.role.count):
                while any(data.index(p, step) is None for p in call):
                    version = self._newest(allowed)
                    try:
                        params = self._read(version)
                    except CheckpointGone:
                        continue  # a newer one exists
                    sealed += self._sample(params, version, [call], size)
        return sealed

    def _newest(self, allowed: range) -> int:
        """Waits for an allowed version, and returns the newest."""

        def found() -> int:
            return max((v for v in self._listed() if v in allowed), default=-1)

        self._await(lambda: found() >= 0, f"a policy version from {allowed.start} to {allowed[-1]}")
        return found()

    def _sample(
        self, params: Any, version: int, calls: list[list[int]], size: int, rounds: int = 0
    ) -> int:
        if self.held:
            self.held.update(version=version)
        self.check()
        metadata = {"checkpoint": f"checkpoints/{version}", "run": self.run}
        sealed = explore(
            self.explorer,
            params,
            reader=self.reader,
            calls=calls,
            size=size,
            policy_version=version,
            metadata=self.parts.provenance() | metadata,
            writer=f"explorer-{self.role.name}",
            rounds=rounds,
            between=self.between,
            check=self.check,
        )
        self.console.print(
            f"version {version}: sealed {sealed} groups, positions {calls[0][0]} to"
            f" {calls[-1][-1]}",
            highlight=False,
        )
        return sealed

    def check(self) -> None:
        """Checks that this process may publish its groups.

        Raises:
            DataError: another process took its name over, or the run was replaced; in all
                processes.
        """

        def mine() -> None:
            if self.held:
                self.held.check()
            registry.require_run(self.folder, self.run)

        processes.on_first(mine)

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        wait_until(ready, lambda: what, say=self.console.print, between=self.between)

    def _read(self, version: int) -> Any:
        if self._params[0] != version:
            self._params = (-1, None)  # frees the one before
            params = read_params(self.folder / "checkpoints", version, self._like)
            self._params = (version, self.parts.full(params))
        return self._params[1]
