"""The training loop of a run with actors: evaluation does not block it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dreamlab.core.clock import Clock
from dreamlab.core.errors import LabError
from dreamlab.core.phase import Phase
from dreamlab.engine.actors.background import BackgroundEvaluator, Task
from dreamlab.engine.actors.collector import RemoteCollector
from dreamlab.engine.actors.options import NOT_EXACT
from dreamlab.engine.actors.transport import Gone
from dreamlab.engine.actors.weights import pack
from dreamlab.engine.evaluator import EvalConfig, EvalResult, UnfinishedError
from dreamlab.engine.every import Due
from dreamlab.engine.loop_parts import EngineConfig, LoopParts
from dreamlab.engine.orchestrator import Orchestrator

LOOK_S = 0.25


class WhenIdle(Due):
    """Due only when nothing is running, so that slow evaluations become fewer."""

    def __init__(self, config: EvalConfig, idle: Callable[[], bool]) -> None:
        super().__init__(config)
        self.idle = idle

    def passed(self, clock: Clock) -> bool:
        return self.idle() and super().passed(clock)


@dataclass(frozen=True)
class Begun:
    """A running evaluation, and the moment it belongs to."""

    clock: Clock
    record: dict[str, float]
    due: list[int]
    """What was due before it started, for a resumed run to repeat."""


class ActorLoop(Orchestrator):
    """Trains while actors collect and another process evaluates.

    learner      update update update update update ...
    evaluation      └─ weights at frame f ──▶ result: a record of frame f, marked `late`

    The evaluated weights are saved when the evaluation starts, so that the best can be kept.
    Evaluations by a phase's hooks, and the final one, block.
    """

    def __init__(
        self,
        config: EngineConfig,
        phases: Sequence[Phase],
        total_frames: int | None,
        parts: LoopParts,
    ) -> None:
        super().__init__(config, phases, total_frames, parts)
        assert parts.background is not None, "a run with actors measures in the background"
        self.background: BackgroundEvaluator = parts.background
        self.eval_due = WhenIdle(config.eval, lambda: not self.background.busy)
        self.begun: Begun | None = None

    def run(self) -> str:
        """Train until the end or an interruption; warn that the run is not reproducible."""
        self.run_log.update(exact_resume=False, exact_resume_reason=NOT_EXACT)
        try:
            return super().run()
        finally:
            self.background.close()

    def _housekeeping(self) -> None:
        self._take_result()
        before = self.begun
        super()._housekeeping()
        if self.begun is not None and self.begun is not before and self.config.checkpoint.keep_best:
            self.checkpoints.held = {self.begun.clock.name}
            if self.scheduler.clock().name not in self.checkpoints.names():
                self.save()

    def _measure(self, **options: Any) -> EvalResult | None:
        if options or self.parts.evaluator is None:
            return super()._measure(**options)
        self._begin()
        return None

    def _begin(self) -> None:
        """Start evaluating the current policy in another process."""
        clock, collector = self.scheduler.clock(), self.parts.collector
        assert isinstance(collector, RemoteCollector)
        record = {**asdict(self.counters), **clock.record(), "phase": float(self.scheduler.index)}
        self.begun = Begun(clock, record, self.eval_due.get_state())
        films = self.config.eval.video and self.config.eval.video_every
        path = self.run_log.folder / "videos" / f"eval_{clock.name}.mp4"
        with self.workflow.averaged():
            payload = pack(self.workflow, 0, collector.statistics())
        self.background.submit(Task(payload, path if films else None))

    def _take_result(self, timeout_s: float = 0.0) -> None:
        """Record the result of the evaluation, if it is done."""
        result, begun = self.background.take(timeout_s), self.begun
        if result is None or begun is None:
            return
        self.begun, self.checkpoints.held = None, set()
        if isinstance(result, LabError):
            raise result
        if isinstance(result, Gone):
            why = f"the evaluation of frame {begun.clock.count:,} is lost: its process died"
            self.say_and_record(f"{why}: {result.why}; the next one starts another")
            return
        metrics = result.metrics()
        self.parts.logger.write_late({**begun.record, **metrics})
        self.run_log.update(last_eval=metrics["eval/return"])
        if result.cut and not self.said_cut:
            self.said_cut = True
            self.say_and_record(result.cut_text(self.config.eval.max_steps))
        self.checkpoints.score(begun.clock.name, metrics["eval/return"])

    def _finish(self) -> str:
        while self.begun is not None:
            if self.stop_requested:
                raise UnfinishedError
            self._take_result(LOOK_S)
        return super()._finish()

    def save(self) -> Path | None:
        """Write a checkpoint; a pending evaluation is repeated after a resume."""
        if self.begun is None:
            return super().save()
        owed, due = self.owed, self.eval_due.get_state()
        self.owed = True
        self.eval_due.set_state(self.begun.due)
        try:
            return super().save()
        finally:
            self.owed = owed
            self.eval_due.set_state(due)
