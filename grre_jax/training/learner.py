"""The learner: takes training steps, writes metrics and checkpoints, evaluates, and publishes
policies.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from grre_jax import reporting
from grre_jax.domains import ConfigError
from grre_jax.errors import DataError
from grre_jax.parallel import mesh as meshes, processes
from grre_jax.random_streams import Purpose, run_key
from grre_jax.training import build
from grre_jax.training.actors.calls import evaluation_questions
from grre_jax.training.actors.supply import Supply
from grre_jax.training.checkpoints import Checkpoints
from grre_jax.training.config.run import Config
from grre_jax.training.data.batches import Chooser, Prefetcher, Prepared, place, prepare
from grre_jax.training.evaluation import answer, figures, make_evaluator
from grre_jax.training.metrics import (
    DelayedMetrics,
    FailureBound,
    Stopwatch,
    age_scalars,
    verdict_scalars,
)
from grre_jax.training.step import TrainState
from grre_jax.training.stopping import StopRequest


@dataclasses.dataclass
class Learner:
    """The learning loop of a run.

    Args:
        parts: of the run.
        choose: the groups of each step.
        supply: seals the run's own samples; None if the run samples nothing.
        log: takes the metrics of each step.
        checkpoints: where states are saved.
        start_params: the trained parameters that the run started from.
        stop: of signals.
        console: for the first process.
    """

    parts: build.Parts
    choose: Chooser
    supply: Supply | None
    log: reporting.RunLog
    checkpoints: Checkpoints
    start_params: Any
    stop: StopRequest
    console: Any

    def __post_init__(self):
        self.evaluator = make_evaluator(self.parts)
        self.questions = evaluation_questions(self.parts)
        self.scores: dict[str, float] = {}  # of the newest evaluation
        self.watch = self.supply.watch if self.supply else Stopwatch()

    def learn(self, state: TrainState, step_fn: Callable) -> TrainState:
        """Takes the steps from the state's to the end of the run.

        Args:
            state: to begin with.
            step_fn: from `make_train_step`.

        Returns:
            The state after the last step.

        Raises:
            DataError: a step's data is missing or damaged, or a checkpoint cannot be written.
            stopping.Stopped: by SIGTERM or SIGINT, after a checkpoint.
        """
        steps = self.parts.config.training.steps
        first = int(state.step)
        arguments = self._given()
        progress = reporting.TrainingProgress(steps, start_step=first, console=self.console)
        prefetcher = Prefetcher(
            lambda step: prepare(step, self.choose, self.parts),
            lambda step: step < steps and self.choose.ready(step),
        )
        with progress as bar, prefetcher, contextlib.ExitStack() as compiler:
            # A mix may lack log-probs, so that its batches have other arrays than an empty one.
            if first < steps and self.parts.config.samples and not self.parts.config.data.mix:
                # Beside the sampler's programs: a batch without groups has the shapes of every
                # other one.
                batch = place([], self.parts.shape, self.parts.objective, self.parts.mesh, first)
                compiler.enter_context(compiling(step_fn, state, batch, *arguments))
            if first == 0:
                self._evaluate(state, 0, bar)
            pending = DelayedMetrics(self.log, time.monotonic(), bar.update, watch=self.watch)
            # A resumed run may have taken more steps than it is to have now.
            remaining = max(steps - first, 0)
            failures = FailureBound(self.parts.config.task.max_failure_share, remaining)
            # What a verifier that was corrected since then did not judge stops no resumed run.
            sealed_before = len(self.choose.own.source.reader) if self.choose.own else 0
            for step in range(first, steps):
                picks, groups, batch = self._data_of(step, state, prefetcher, bar, pending)
                ages = np.array([pick.age for pick in picks], float)
                failures.check(
                    [
                        group
                        for group, pick in zip(groups, picks, strict=True)
                        if not math.isnan(pick.age) and pick.index >= sealed_before
                    ]
                )
                if step == first:
                    bar.phase("compiling the train step")
                    # Waits for the compiler's thread, so that the call finds its program.
                    compiler.close()
                # An argument that is still on the host would silently be copied at every step.
                with jax.transfer_guard("disallow"):
                    state, metrics = step_fn(state, batch, *arguments)
                # The call above returns before the devices have computed.
                prefetcher.begin(step + 1)
                # The previous step's metrics are read now, while this step computes: nothing waits
                # for the device.
                extra = age_scalars(ages) | verdict_scalars(groups)
                if self.supply:
                    extra |= self.supply.explorer.scalars()
                pending.swap(step + 1, metrics, extra)
                self._after_step(step + 1, state, bar, pending)
        return state

    def _given(self) -> tuple[Any, ...]:
        """Returns the arguments of a step besides state and batch, on the devices before it is
        called: the transfer guard raises if anything is not.
        """
        config = self.parts.config
        mesh = self.parts.mesh
        # KL penalties and similar terms are to the policy that the run started from.
        computed = self.parts.objective.requires - set(config.objective.stored_fields)
        reference = self.start_params if "ref_logprobs" in computed else None
        key = run_key(config.seed, Purpose.SHAPE)
        temperature = np.float32(config.sampling.temperature)
        # `put` takes NumPy arrays, which a key is not: its data is moved.
        objective, temperature, key_data = jax.tree.map(
            lambda x: processes.put(np.asarray(x), meshes.replicated(mesh)),
            (self.parts.objective, temperature, jax.random.key_data(key)),
        )
        key = jax.random.wrap_key_data(key_data, impl=jax.random.key_impl(key))
        return objective, temperature, key, reference, self.parts.frozen

    def _after_step(self, done: int, state: TrainState, bar: Any, pending: DelayedMetrics) -> None:
        """Evaluates, saves and stops after `done` steps if it is time."""
        config = self.parts.config
        last = done == config.training.steps
        every = config.evaluation.every
        evaluates = last or (every and done % every == 0)
        if evaluates:
            # Writes the step's row first: its seconds end before the evaluation.
            pending.swap(done, None)
            self._evaluate(state, done, bar)
            # The seconds of the evaluation are not the next step's.
            pending.clock = time.monotonic()
        # Only checkpoints can be among the best, so every evaluation has one.
        best = evaluates and config.checkpoint.best > 0
        if last or best or done % config.checkpoint.every == 0:
            self._publish(state, pending, metrics=self.scores if evaluates else None)
        self._stop_if_asked(state, pending)

    def _data_of(
        self,
        step: int,
        state: TrainState,
        prefetcher: Prefetcher,
        bar: Any,
        pending: DelayedMetrics,
    ) -> Prepared:
        """Returns the data of a step once it is sealed."""

        def between() -> None:
            self._stop_if_asked(state, pending)
            prefetcher.begin(step)  # once it is sealed, while later calls are sampled

        prefetcher.settle()
        try:
            if self.supply:
                self.supply.ensure(step, state, bar, between)
            with self.watch("waiting"):
                return prefetcher.take(step)
        except DataError:
            # A policy that is not finite samples nothing that could be stored: then the metrics of
            # the step before name the reason.
            pending.swap(step, None)
            raise

    def _stop_if_asked(self, state: TrainState, pending: DelayedMetrics) -> None:
        """Saves the state and ends the run if a signal was received; called between two steps, and
        between two data sets of one step.
        """
        if self.stop.agreed():
            # The process ends next: a save in the background would end with it.
            self._publish(state, pending, wait=True)
            raise self.stop.stopped(
                f"at step {int(state.step)}, which is saved: start it again to go on (`grre train`"
                " with --resume)"
            )

    def _publish(self, state: TrainState, pending: DelayedMetrics, **options: Any) -> None:
        """Saves a checkpoint.

        Raises:
            DataError: it cannot be written; in all processes.
        """
        # The rows come first: a run killed after the checkpoint resumes beyond this step, and would
        # not write them again.
        pending.swap(int(state.step), None)
        if self.supply:
            # Else a run that resumes from it might lack groups of policies that have no checkpoint.
            self.supply.settle(int(state.step))
        self.checkpoints.save(state, **options)

    def _evaluate(self, state: TrainState, step: int, bar: Any) -> None:
        if self.questions:
            bar.phase("evaluating" if step else "compiling, evaluating")
            policy, start = map(self.parts.full, (state.params, self.start_params))
            answers = answer(self.evaluator, policy, self.questions, step=step)
            scalars = figures(self.evaluator, *answers, start)
            self.log.write("eval", step, scalars)
            _require_best(self.parts.config, scalars)
            self.scores = scalars
            bar.evaluated(step, scalars)


def _require_best(config: Config, scores: dict[str, float]) -> None:
    """Checks that an evaluation has the figure that selects the best checkpoints.

    Raises:
        UsageError: it lacks the figure, because the task's verdicts do.
    """
    metric = config.checkpoint.best_metric
    if config.checkpoint.best and metric not in scores:
        domain = (
            f"a figure of an evaluation on task {config.task.name} ({', '.join(scores)}; accuracy"
            " if it returns Verdict(reward, correct=...))"
        )
        raise ConfigError("checkpoint.best_metric", domain, metric)


@contextlib.contextmanager
def compiling(step_fn: Any, *arguments: Any) -> Iterator[None]:
    """Compiles a step in a thread beside what the context does, and waits for it at the end: a call
    with such arguments then finds the program.

    It is traced before the context begins: TensorFlow Datasets replaces `__import__` in all threads
    while it is imported, which what the context writes may cause, and tracing imports.

    Args:
        step_fn: from `make_train_step`.
        arguments: of the step; of arrays only shapes, dtypes and layouts are used.
    """
    lowered = step_fn.lower(*arguments)
    with ThreadPoolExecutor(1, thread_name_prefix="compiler") as pool:
        program = pool.submit(lowered.compile)
        yield
        program.result()
