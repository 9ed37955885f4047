"""The training loop: one for every algorithm. It knows phases, buffers and hooks, and no more."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from dreamlab.core import rng as random
from dreamlab.core import sharding, world
from dreamlab.core.clock import Counters
from dreamlab.core.errors import EnvError, LabError
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Metrics
from dreamlab.data.mix import draws, source_of
from dreamlab.data.source import Source
from dreamlab.data.store import Store
from dreamlab.engine import loop_state
from dreamlab.engine.accelerate import autocast
from dreamlab.engine.alerts import Alerts
from dreamlab.engine.checkpoint import Checkpoints
from dreamlab.engine.collector import Collected
from dreamlab.engine.default_observers import add_default_observers
from dreamlab.engine.evaluator import EvalResult, Evaluator, UnfinishedError
from dreamlab.engine.every import Due
from dreamlab.engine.loop_parts import EngineConfig, LoopParts
from dreamlab.engine.phase_scheduler import UPDATE, PhaseScheduler
from dreamlab.engine.report import write_report
from dreamlab.engine.signals import Deadline, first_signal, on_stop
from dreamlab.engine.speed import Speed
from dreamlab.engine.video import Films
from dreamlab.engine.watch import Watch


class Orchestrator:
    """Asks the scheduler what is next, does it; looks after logs, evaluation and checkpoints."""

    def __init__(
        self,
        config: EngineConfig,
        phases: Sequence[Phase],
        total_frames: int | None,
        parts: LoopParts,
    ) -> None:
        self.config, self.parts = config, parts
        self.workflow, self.run_log = parts.workflow, parts.run
        self.observers = parts.observers
        self.scheduler = PhaseScheduler(phases, total_frames)
        self.sources = [source_of(p, parts.buffers) for p in self.scheduler.phases]
        self.counters = Counters()
        self.watch = Watch(config.watch, self.alert, parts.run.folder, parts.floor)
        self.alerts = Alerts(config.watch, parts.run.folder, self.say_and_record)
        folder = parts.run.folder / "checkpoints"
        self.checkpoints = Checkpoints(folder, config.checkpoint, self.say_and_record)
        add_default_observers(self, self.say_and_record)
        self.log_due, self.eval_due = Due(config.log), Due(config.eval)
        self.save_due, self.report_due = Due(config.checkpoint), Due(config.report)
        self.stop_requested = False
        self.deadline = Deadline(config.checkpoint.deadline_s, self.say_and_record)
        self.stopping, self.late, self.asked = False, False, False  # as all processes agree
        self.owed = False  # an interrupted evaluation, to be repeated first
        self.said_cut = False
        self.films = Films(self.say_and_record)
        self.batch: Batch | None = None
        self.score: float | None = None
        self.speed = Speed()
        self.saved_at = time.monotonic()

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> str:
        """Train until the end or an interruption; return 'finished' or 'interrupted'."""
        if self.scheduler.next_action() is None and not self.owed:
            return "finished"
        for tell in self.observers.started:
            tell(self)
        self.watch.prepare(self.workflow)
        self.parts.terminal.start()
        self._restart_clock()
        self.run_log.update(status="running")
        status = "failed"
        try:
            with on_stop(lambda: self.stop_requested, self._request_stop, self.deadline):
                try:
                    self._loop()
                    status = self._interrupt() if self.stopping else self._finish()
                except UnfinishedError:
                    status = self._interrupt()
        except BaseException as error:
            with suppress(OSError):  # a disk that is full must not hide what happened
                self._record_failure(error)
            raise
        finally:
            with suppress(OSError):
                self.alerts.close()
            self.parts.terminal.close()
            try:
                for tell in self.observers.finished:
                    tell(status)
            finally:
                self.parts.logger.close()
        return status

    def stop(self) -> None:
        """Ask for what the first Ctrl-C does: finish the stage, save a checkpoint, end."""
        self.stop_requested = True

    def _loop(self) -> None:
        if self.owed:
            self._housekeeping()
        while self._goes_on() and (action := self.scheduler.next_action()) is not None:
            self._announce_phase()
            self._do(action)
            self._housekeeping()

    def _goes_on(self) -> bool:
        """Tell whether no process was asked to stop; what collects has asked the others already."""
        if not self.asked or world.size() == 1:
            self.stopping, self.late = map(bool, world.agree(self._wishes()))
        self.asked = False
        return not self.stopping

    def _wishes(self) -> list[float]:
        """Return whether this process is to stop, and whether by its clock a checkpoint is due."""
        late = world.is_main() and 0 < self.config.checkpoint.every_s <= self._unsaved_s()
        return [float(self.stop_requested), float(late)]

    def _unsaved_s(self) -> float:
        return time.monotonic() - self.saved_at

    def _request_stop(self) -> None:
        self.stop()
        self.parts.terminal.say("stopping: saving a checkpoint (Ctrl-C to stop immediately)")

    def _record_failure(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):  # the second Ctrl-C: nobody waits for a checkpoint
            self._note_stop("SIGINT")
            return
        text = f"{type(error).__name__}: {error}"
        self.run_log.event("failed", error=text, traceback=traceback.format_exc())
        self.run_log.update(status="failed")
        if isinstance(error, EnvError) and (names := self.checkpoints.names()):
            self.parts.terminal.say(
                f"checkpoint {names[0]} is complete: `dreamlab resume {self.run_log.folder}` "
                f"resumes from it"
            )

    def _do(self, action: str) -> None:
        for tell in self.observers.before:
            tell(action)
        if action == "collect":
            self._collect()
        elif action == UPDATE:
            self._update()
        elif action == "evaluate":
            self.evaluate()
            self.scheduler.advance()
        else:
            self.scheduler.advance()
            self.save()
        for tell in self.observers.after:
            tell(action)

    def _collect(self) -> None:
        phase, collector = self.scheduler.phase, self.parts.collector
        assert collector is not None, "a run that collects needs environments"
        with autocast(self.config, self.workflow.device):
            store, fresh = cast(Store, self.parts.buffers[phase.buffer]), phase.fresh_episodes
            done = collector.collect(phase.collect_ticks, store, phase.random_actions, fresh)
        self._report_episodes(done)
        source = self._source()
        ready = source is not None and source.ready()
        counts = [done.frames, done.decisions, len(done.returns), ready, *self._wishes()]
        frames, decisions, episodes, all_ready, stop, late = map(int, world.agree(counts))
        self.stopping, self.late, self.asked = stop > 0, late > 0, True
        collector.agree()
        self.counters.env_frames += frames
        self.counters.decisions += decisions
        self.counters.episodes += episodes
        drawable = source is not None and all_ready == world.size()
        replayed = source.steps_per_sample * world.size() if source and drawable else 0
        self.scheduler.advance(frames=frames, decisions=decisions, replayed=replayed)

    def _report_episodes(self, done: Collected) -> None:
        for total, length in zip(done.returns, done.lengths, strict=True):
            self.parts.logger.add({"return": total, "length": float(length)}, "episode/")
        for final in done.finals:
            self.parts.logger.add(final, "episode/")

    def _update(self) -> None:
        phase, source = self.scheduler.phase, self._source()
        assert source is not None, "a phase with updates needs a source"
        if not world.all_of(source.ready()):
            if phase.type == "offline":
                names = " and ".join(map(repr, phase.draws_from))
                raise LabError(f"phase {phase.name!r}: {names} has too few steps for a batch")
            self.scheduler.advance()
            return
        drawn, reported = draws(source, phase), Metrics()
        self.batch = first = drawn[0][1]
        for name, batch, origin in drawn:
            with autocast(self.config, self.workflow.device):
                result = getattr(self.workflow, name)(batch, phase=phase)
            metrics, extras = result if isinstance(result, tuple) else (result, None)
            if extras and batch.index is not None:
                origin.update(batch.index, extras)
            self.parts.logger.add(metrics, "train/")
            reported |= metrics
        self.counters.updates += 1
        for tell in self.observers.updated:
            tell(first, reported)
        self.watch.updated(self.workflow, first)  # last: it may end the run
        self.scheduler.advance(updates=1)

    def _source(self) -> Source | None:
        """Return what the phase draws batches from; an exam may have none."""
        return self.sources[min(self.scheduler.index, len(self.sources) - 1)]

    # -- around the loop --------------------------------------------------------------------------

    def _housekeeping(self) -> None:
        s = self.scheduler
        if s.next_action() is None or s.ends_with_cycle():
            return  # the end evaluates, logs and saves by itself, and so once
        clock = s.clock()
        total = clock.count / max(s.progress(), 1e-9)
        self.parts.terminal.tick(s.phase.name, clock.count, total, clock.unit)
        self.counters.cycles = s.cycles
        measured = self.parts.evaluator is not None and self.eval_due.passed(clock)
        if measured:
            self._measure()
            self.eval_due.done(clock)
        if self.report_due(clock):
            self.report()
        if self.log_due(clock):
            self.flush()
        best = measured and world.broadcast(self.checkpoints.would_be_best(self.score))
        if self.save_due(clock) or self._is_late() or best:
            self.save()
        if measured:
            self.score = None  # what is saved from now on has not been measured

    def _is_late(self) -> bool:
        """Tell whether the last checkpoint is too old; of several processes rank 0 has told."""
        if world.size() > 1:
            return self.late
        return 0 < self.config.checkpoint.every_s <= self._unsaved_s()

    def _interrupt(self) -> str:
        """Save; what the end would have done is done when the run continues."""
        self.owed = self.owed or self.scheduler.next_action() is None
        self.save()
        self._note_stop(first_signal(world.gather(self.deadline.signal)))
        return "interrupted"

    def _note_stop(self, by: str) -> None:
        self.run_log.event("interrupted", **self.now(), stopped_by=by)
        self.run_log.update(status="interrupted", stopped_by=by)

    def _finish(self) -> str:
        """Evaluate and save at the end."""
        result = self._measure(video=self.config.eval.video)
        self.report()
        self.flush()
        self.save()
        self.run_log.event("finished", **self.now())
        video = result.video if result is not None else None
        shown = str(video.relative_to(self.run_log.folder)) if video is not None else None
        final = result.metrics() if result is not None else None
        self.run_log.update(status="finished", final_eval=final, video=shown)
        self.parts.logger.ended(final or {})
        return "finished"

    def now(self) -> dict[str, int]:
        counts = {"env_frames": self.counters.env_frames, "updates": self.counters.updates}
        return {**counts, **self.scheduler.clock().record()}

    def _measure(self, **options: Any) -> EvalResult | None:
        """Evaluate outside of the phases' own plan; if interrupted, it is still owed."""
        self.owed = True
        result = self.evaluate(**options)
        self.owed = False
        return result

    def evaluate(self, video: bool = False) -> EvalResult | None:
        """Measure the policy and report it under `eval/`; raise if a stop was requested.

        Return None where there is no environment to measure it on.
        """
        if self.parts.evaluator is None:
            return None
        result, finished = None, True
        with sharding.assembled(self.workflow):
            if world.is_main():  # the others wait
                try:
                    with world.alone():
                        result = self._evaluate_here(self.parts.evaluator, video)
                except UnfinishedError:
                    finished = False
        self.score, finished = world.broadcast((self.score, finished))
        if not finished:
            raise UnfinishedError
        return result

    def _evaluate_here(self, evaluator: Evaluator, video: bool) -> EvalResult:
        """Measure the policy on this process alone."""
        path = self.run_log.folder / "videos" / f"eval_{self.scheduler.clock().name}.mp4"
        wanted = video or (self.config.eval.video and self.config.eval.video_every)
        statistics = self.parts.collector.statistics() if self.parts.collector else None
        with self.speed.paused():
            result = evaluator.run(self.workflow, statistics, wanted, lambda: self.stop_requested)
            if result.frames:
                result.video = self.films.write(path, result.frames)
                self.parts.logger.media([result.video], self.scheduler.clock().count)
        metrics = result.metrics()
        self.parts.logger.add(metrics)
        self.score = metrics["eval/return"]
        if result.cut and not self.said_cut:
            self.said_cut = True
            self.say_and_record(result.cut_text(self.config.eval.max_steps))
        return result

    def report(self) -> list[Path]:
        """Look inside the algorithm, if it lets us, and write down what is seen."""
        if not self.config.distributed.assemble:
            return []
        with sharding.assembled(self.workflow):
            return self._report()

    def _report(self) -> list[Path]:
        clock, source = self.scheduler.clock(), self._source()
        ready = world.is_main() and source is not None and source.ready()
        batch = source.peek(clock.count, self.config.report.length) if source and ready else None
        if batch is None:
            return []
        with self.speed.paused(), random.fork(clock.count), world.alone():
            report = self.workflow.report(batch)
        if report is None:
            return []
        self.parts.logger.add(report.metrics, "report/")
        folder, fps = self.run_log.folder / "report", self.config.report.fps
        made = write_report(report, folder, clock.name, fps, self.parts.known, self.films.write)
        self.parts.logger.media(made, clock.count)
        return made

    def flush(self) -> dict[str, float]:
        """Write a record of metrics."""
        frames, updates = self.counters.env_frames, self.counters.updates
        fixed = {
            **asdict(self.counters),
            **self.scheduler.clock().record(),
            "phase": float(self.scheduler.index),
            **self.speed.record(frames, updates),
        }
        for tell in self.observers.flushing:
            tell(fixed)
        record = self.parts.logger.flush(fixed)
        if not self.evaluates() and "episode/return" in record:
            self.score = record["episode/return"]
        shown = {"return": "episode/return", "eval": "eval/return", "success": "eval/success"}
        last = {f"last_{name}": record.get(key) for name, key in shown.items()}
        self.run_log.update(env_frames=frames, updates=updates, **last)
        for tell in self.observers.flushed:
            tell(record)
        self.watch.flushed(record, self.workflow, self.batch)
        self.alerts.tell()
        return record

    def alert(self, kind: str, text: str) -> None:
        """Send an alert to the terminal, events.jsonl and the user's command; rank 0 does."""
        self.parts.terminal.say(f"alert ({kind}): {text}")
        self.run_log.event("alert", alert=kind, text=text)
        if world.is_main():
            self.alerts.send(kind, text)

    def say_and_record(self, text: str) -> None:
        self.parts.terminal.say(text)
        self.run_log.event("message", text=text)

    def _announce_phase(self) -> None:
        s = self.scheduler
        if s.stage == 0 and not s.cycles_in and not s.frames_in:
            self.run_log.event("phase", name=s.phase.name, **self.now())

    def _restart_clock(self) -> None:
        self.speed.restart(self.counters.env_frames, self.counters.updates)
        self.saved_at = time.monotonic()

    # -- state ------------------------------------------------------------------------------------

    def evaluates(self) -> bool:
        """Return whether the policy is measured while it is trained."""
        wanted = self.config.eval.every_frames or self.config.eval.every_updates
        return bool(wanted) and self.parts.evaluator is not None

    def dues(self) -> dict[str, Due]:
        return {
            "log": self.log_due, "eval": self.eval_due, "save": self.save_due,
            "report": self.report_due,
        }  # fmt: skip

    def save(self) -> Path | None:
        """Write a checkpoint of everything the next step depends on; None if it is not finite."""
        return loop_state.save(self)

    def load(self, which: str = "latest") -> bool:
        """Continue from the newest whole checkpoint, or from one; False if there is none."""
        return loop_state.load(self, which)
