"""The training loop: one for every algorithm. It knows phases, buffers and hooks, and no more."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from dreamlab.core import rng as random
from dreamlab.core.errors import LabError
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch
from dreamlab.core.workflow import Workflow
from dreamlab.data.buffer import Buffer
from dreamlab.engine.accelerate import ComputeConfig, autocast
from dreamlab.engine.alerts import send
from dreamlab.engine.chain import Chain
from dreamlab.engine.checkpoint import CheckpointConfig, Checkpoints
from dreamlab.engine.collector import Collected, Collector
from dreamlab.engine.evaluator import EvalConfig, EvalResult, Evaluator
from dreamlab.engine.logger import LogConfig, Logger
from dreamlab.engine.phase_scheduler import UPDATE, Counters, PhaseScheduler
from dreamlab.engine.report import Paint, ReportConfig, write_report
from dreamlab.engine.terminal import Terminal
from dreamlab.engine.watch import Floor, Watch, WatchConfig


class RunLog(Protocol):
    """The run folder, as the loop sees it."""

    folder: Path

    def event(self, kind: str, **data: Any) -> None: ...
    def update(self, **data: Any) -> None: ...


@dataclass(frozen=True)
class EngineConfig:
    """Everything the loop itself can be told."""

    log: LogConfig = field(default_factory=LogConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)


@dataclass
class Parts:
    """What the composition root hands to the loop."""

    workflow: Workflow[Any]
    collector: Collector
    buffers: Mapping[str, Buffer]
    evaluator: Evaluator
    logger: Logger
    terminal: Terminal
    run: RunLog
    paint: Paint | None = None
    floor: Floor = lambda frames: None


class Every:
    """Fires once whenever a count passes the next multiple of `period`; 0 never fires."""

    def __init__(self, period: int) -> None:
        self.period, self.last = period, 0

    def __call__(self, count: int) -> bool:
        if self.period <= 0 or count // self.period <= self.last // self.period:
            return False
        self.last = count
        return True


class Orchestrator:
    """Asks the scheduler what is next, does it; looks after logs, evaluation and checkpoints."""

    def __init__(
        self, config: EngineConfig, phases: Sequence[Phase], total_frames: int | None, parts: Parts
    ) -> None:
        self.config, self.parts = config, parts
        self.workflow, self.run_log = parts.workflow, parts.run
        self.scheduler = PhaseScheduler(phases, total_frames)
        self.counters = Counters()
        self.watch = Watch(config.watch, self.alert, parts.run.folder, parts.floor)
        folder = parts.run.folder / "checkpoints"
        self.checkpoints = Checkpoints(folder, config.checkpoint, self._say_and_record)
        if config.log.chain:
            chain = Chain(parts.run.folder / "chain.jsonl", self.workflow)
            parts.logger.sinks.append(chain)
            parts.collector.witnesses.append(chain.saw)
        self.log_due = Every(config.log.every_frames)
        self.eval_due = Every(config.eval.every_frames)
        self.save_due = Every(config.checkpoint.every_frames)
        self.report_due = Every(config.report.every_frames)
        self.stop_requested = False
        self.batch: Batch | None = None
        self.score: float | None = None
        self.profiler: Any = None
        self.wall_s = 0.0
        self.mark = (time.monotonic(), 0, 0)
        self.saved_at = time.monotonic()

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> str:
        """Train until the end or an interruption; return 'finished' or 'interrupted'."""
        if self.scheduler.next_action() is None:
            return "finished"
        self.watch.prepare(self.workflow)
        self.parts.terminal.start()
        self._restart_clock()
        self.run_log.update(status="running")
        try:
            with self._signals():
                while (
                    action := self.scheduler.next_action()
                ) is not None and not self.stop_requested:
                    self._announce_phase()
                    self._do(action)
                    self._housekeeping()
                status = self._finish()
        except BaseException as error:
            with suppress(OSError):  # a disk that is full must not hide what happened
                self.run_log.event("failed", error=f"{type(error).__name__}: {error}")
                self.run_log.update(status="failed")
            raise
        finally:
            self.parts.terminal.close()
            self.parts.logger.close()
        return status

    def _do(self, action: str) -> None:
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

    def _collect(self) -> None:
        phase, buffer = self.scheduler.phase, self._buffer()
        with autocast(self.config.compute, self.workflow.device):
            done = self.parts.collector.collect(phase.collect_ticks, buffer, phase.random_actions)
        self.counters.env_frames += done.frames
        self.counters.decisions += done.decisions
        self.counters.episodes += len(done.returns)
        self._report_episodes(done)
        replayed = buffer.steps_per_sample if buffer.ready() else 0
        self.scheduler.advance(frames=done.frames, decisions=done.decisions, replayed=replayed)

    def _report_episodes(self, done: Collected) -> None:
        for total, length in zip(done.returns, done.lengths, strict=True):
            self.parts.logger.add({"return": total, "length": float(length)}, "episode/")
        for final in done.finals:
            self.parts.logger.add(final, "episode/")

    def _update(self) -> None:
        phase, buffer = self.scheduler.phase, self._buffer()
        if not buffer.ready():
            if phase.type == "offline":
                raise LabError(
                    f"phase {phase.name!r}: buffer {phase.buffer!r} holds too little for a batch"
                )
            self.scheduler.advance()
            return
        self.batch = batch = buffer.sample()
        for name in phase.update_hooks:
            with autocast(self.config.compute, self.workflow.device):
                result = getattr(self.workflow, name)(batch, phase=phase)
            metrics, extras = result if isinstance(result, tuple) else (result, None)
            if extras and batch.index is not None:
                buffer.update(batch.index, extras)
            self.parts.logger.add(metrics, "train/")
        self.watch.updated(self.workflow, batch)
        self.counters.updates += 1
        self._profile()
        self.scheduler.advance(updates=1)

    def _buffer(self) -> Buffer:
        return self.parts.buffers[self.scheduler.phase.buffer]

    # -- around the loop --------------------------------------------------------------------------

    def _housekeeping(self) -> None:
        frames, s = self.counters.env_frames, self.scheduler
        if s.next_action() is None:
            return  # the end evaluates, logs and saves by itself
        planned = s.planned_frames()
        done, unit = (frames, "frames") if planned else (s.updates, "updates")
        self.parts.terminal.tick(s.phase.name, done, done / max(s.progress(), 1e-9), unit)
        self.counters.cycles = s.cycles
        count = frames if planned else s.updates
        measured = self.eval_due(count)
        if measured:
            self.evaluate()
        if self.report_due(count):
            self.report()
        if self.log_due(count):
            self.flush()
        limit = self.config.checkpoint.every_s
        late = 0 < limit <= time.monotonic() - self.saved_at
        best = measured and self.checkpoints.would_be_best(self.score)
        if self.save_due(count) or late or best:
            self.save()
        if measured:
            self.score = None  # what is saved from now on has not been measured

    def _finish(self) -> str:
        """Evaluate and save at the end; an interrupted run only saves."""
        if self.stop_requested:
            self.save()
            self.run_log.event("interrupted", env_frames=self.counters.env_frames)
            self.run_log.update(status="interrupted")
            return "interrupted"
        result = self.evaluate(video=self.config.eval.video)
        self.report()
        self.flush()
        self.save()
        self.run_log.event("finished", env_frames=self.counters.env_frames)
        video = str(result.video.relative_to(self.run_log.folder)) if result.video else None
        self.run_log.update(status="finished", final_eval=result.metrics(), video=video)
        return "finished"

    def evaluate(self, video: bool = False) -> EvalResult:
        """Measure the policy and report it under `eval/`."""
        path = self.run_log.folder / "videos" / f"eval_{self.counters.env_frames:012d}.mp4"
        wanted = video or (self.config.eval.video and self.config.eval.video_every)
        self.parts.collector.settle()
        statistics = self.parts.collector.envs.normalizer.get_state()
        result = self.parts.evaluator.run(self.workflow, statistics, path if wanted else None)
        metrics = result.metrics()
        self.parts.logger.add(metrics)
        self.score = metrics["eval/return"]
        return result

    def report(self) -> list[Path]:
        """Look inside the algorithm, if it lets us, and write down what is seen."""
        buffer = self.parts.buffers.get(self.scheduler.phase.buffer)  # an exam needs none
        seed, length = self.counters.env_frames, self.config.report.length
        if buffer is None or not buffer.ready() or (batch := buffer.peek(seed, length)) is None:
            return []
        with random.fork(self.counters.env_frames):
            report = self.workflow.report(batch)
        if report is None:
            return []
        self.parts.logger.add(report.metrics, "report/")
        folder = self.run_log.folder / "report"
        return write_report(report, folder, seed, self.config.report.fps, self.parts.paint)

    def flush(self) -> dict[str, float]:
        """Write a record of metrics."""
        now, frames, updates = time.monotonic(), self.counters.env_frames, self.counters.updates
        then, frames_then, updates_then = self.mark
        elapsed = max(now - then, 1e-9)
        fixed = {
            **asdict(self.counters),
            "phase": float(self.scheduler.index),
            "time/frames_per_s": (frames - frames_then) / elapsed,
            "time/updates_per_s": (updates - updates_then) / elapsed,
            "time/wall_s": self.wall_s + elapsed,
        }
        self.wall_s += elapsed
        self.mark = (now, frames, updates)
        record = self.parts.logger.flush(fixed)
        if not self.config.eval.every_frames and "episode/return" in record:
            self.score = record["episode/return"]
        last = {"last_return": record.get("episode/return"), "last_eval": record.get("eval/return")}
        self.run_log.update(env_frames=frames, updates=updates, **last)
        self.watch.flushed(record, self.workflow, self.batch)
        return record

    def alert(self, kind: str, text: str) -> None:
        """Tell the terminal, events.jsonl and the user's command."""
        self.parts.terminal.say(f"alert ({kind}): {text}")
        self.run_log.event("alert", alert=kind, text=text)
        send(self.config.watch, kind, text, self.run_log.folder, self._say_and_record)

    def _say_and_record(self, text: str) -> None:
        self.parts.terminal.say(text)
        self.run_log.event("message", text=text)

    def _announce_phase(self) -> None:
        s = self.scheduler
        if s.stage == 0 and not s.cycles_in and not s.frames_in:
            self.run_log.event("phase", name=s.phase.name, env_frames=self.counters.env_frames)

    def _restart_clock(self) -> None:
        self.mark = (time.monotonic(), self.counters.env_frames, self.counters.updates)
        self.saved_at = time.monotonic()

    def _profile(self) -> None:
        """Record the first updates with torch.profiler, if so configured."""
        wanted, done = self.config.watch.profile_updates, self.counters.updates
        if not wanted or done > wanted + 1:
            return
        if self.profiler is None:
            self.profiler = torch.profiler.profile()
            self.profiler.start()
        elif done == wanted + 1:
            self.profiler.stop()
            path = self.run_log.folder / "report" / "trace.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.profiler.export_chrome_trace(str(path))
            self._say_and_record(f"profile of {wanted} updates: {path}")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn the first Ctrl-C or SIGTERM into a request to save; a second one stops at once."""

        def handle(number: int, frame: Any) -> None:
            if self.stop_requested:
                raise KeyboardInterrupt
            self.stop_requested = True
            self.parts.terminal.say("stopping: saving a checkpoint (once more to stop at once)")

        try:
            before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
        except (
            ValueError
        ):  # signals belong to the main thread; inside another one nobody presses Ctrl-C
            yield
            return
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    # -- state ------------------------------------------------------------------------------------

    def _dues(self) -> dict[str, Every]:
        return {
            "log": self.log_due, "eval": self.eval_due, "save": self.save_due,
            "report": self.report_due,
        }  # fmt: skip

    def save(self) -> Path:
        """Write a checkpoint of everything the next step depends on."""
        buffers = {name: buffer.save() for name, buffer in self.parts.buffers.items()}
        state = {
            "workflow": self.workflow.state_dict(),
            "collector": self.parts.collector.get_state(),
            "buffers": buffers,
            "scheduler": self.scheduler.get_state(),
            "counters": asdict(self.counters),
            "logger": self.parts.logger.get_state(),
            "watch": self.watch.get_state(),
            "rng": random.get_state(),
            "due": {name: due.last for name, due in self._dues().items()},
            "score": self.score,
            "wall_s": self.wall_s,
        }
        marks = {k: {m: v for m, v in s.items() if isinstance(v, int)} for k, s in buffers.items()}
        path = self.checkpoints.save(state, self.counters.env_frames, self.score, marks)
        for name, buffer in self.parts.buffers.items():
            buffer.prune([m[name] for m in self.checkpoints.marks()])
        self.saved_at = time.monotonic()
        return path

    def load(self) -> bool:
        """Continue from the newest whole checkpoint; return False if there is none.

        A run that died before its first checkpoint begins anew, and so do its records.
        """
        state = self.checkpoints.load()
        if state is None:
            self.parts.logger.restart()
            return False
        self.workflow.load_state_dict(state["workflow"])
        for name, buffer in self.parts.buffers.items():
            buffer.load(state["buffers"][name])
        self.scheduler.set_state(state["scheduler"])
        self.counters = Counters(**state["counters"])
        self.parts.logger.set_state(state["logger"])
        self.watch.set_state(state["watch"])
        for name, due in self._dues().items():
            due.last = state["due"][name]
        self.score = None if self.config.eval.every_frames else state["score"]
        self.wall_s = state["wall_s"]
        lost = self.parts.collector.set_state(state["collector"])
        if lost:
            self._say_and_record(f"environments {lost} cannot be restored and begin a new episode")
        self.run_log.update(exact_resume=not lost)
        self.run_log.event("resumed", env_frames=self.counters.env_frames, lost_envs=lost)
        random.set_state(state["rng"])
        return True
