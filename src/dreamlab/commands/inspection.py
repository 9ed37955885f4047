"""Implementation of `dreamlab debug`: a few hundred frames with all checks on."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dreamlab import build, training
from dreamlab.config import LabConfig, compose, load_config
from dreamlab.core.errors import DivergedError, LabError
from dreamlab.core.files import disk_errors
from dreamlab.core.text import print
from dreamlab.engine.inspector import Inspector
from dreamlab.engine.memory import MemoryProfile, describe
from dreamlab.engine.observer import StageTimes, StopWhen
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.profiler import Profiler
from dreamlab.engine.terminal import Terminal


def inspect(overrides: Sequence[str], frames: int) -> int:
    """Train with all checks on and print the findings; return 1 if there was an error."""
    config = _debug_config(overrides)
    build.check(config)
    with disk_errors(every=True), tempfile.TemporaryDirectory() as scratch:
        folder = Path(config.run.dir or f"{scratch}/checked")
        inspector = Inspector(_open(config, folder), config.env.normalize_obs is not None)
        inspector.attach()
        inspector.loop.observers.add(_stop_at(frames))
        error: LabError | None = None
        try:
            inspector.loop.run()
        except DivergedError as diverged:
            error = diverged
        _report_inspection(inspector, error)
        if error is None:  # again without the checks, which would dominate the profile
            plain = replace(config, watch=replace(config.watch, check_every_update=False))
            _measure(_open(plain, Path(scratch) / "measured"), frames)
            _profile(_open(plain, Path(scratch) / "profiled"), frames)
    found = [f.level for f in inspector.findings()]
    return 1 if error is not None or "error" in found else 0


def _stop_at(frames: int) -> StopWhen:
    return StopWhen(lambda loop: loop.scheduler.clock().count >= frames)


def _open(config: LabConfig, folder: Path) -> Orchestrator:
    """Return the loop of a new run."""
    with training.open_run(replace(config, run=replace(config.run, dir=str(folder)))) as opened:
        if opened.found:
            raise LabError(f"{folder} already contains a run: choose another run.dir")
        loop = build.build(opened.config, opened.run, Terminal("off", config.name))
        opened.keep()
    return loop


def _debug_config(overrides: Sequence[str]) -> LabConfig:
    preset = [] if any("preset=" in o for o in overrides) else ["+preset=debug"]
    config = load_config(compose([*overrides, *preset]))
    return replace(
        config,
        compile=False,
        log=replace(config.log, terminal="off"),
        eval=replace(config.eval, video=False),
        watch=replace(config.watch, check_every_update=True, profile_updates=0, on_nan="stop"),
    )


def _report_inspection(inspector: Inspector, error: LabError | None) -> None:
    counters, findings = inspector.loop.counters, inspector.findings()
    print(f"{counters.env_frames} env frames, {counters.updates} updates")
    print("\nfindings" if findings or error else "\nno problems found")
    for finding in findings:
        print(f"  {finding.level:8s} {finding.text}")
    if error is not None:
        print(f"  error    {error}")
    print("\ninputs                       lowest     highest")
    for name, seen in [*inspector.obs.items(), ("action", inspector.action)]:
        print(f"  {name:24s} {seen.low:10.4g}  {seen.high:10.4g}")
    print("\ngradients, after clipping     first      median     largest")
    for name, first, median, largest in inspector.gradient_rows():
        print(f"  {name:24s} {first:10.3g}  {median:10.3g}  {largest:10.3g}")
    print("\nlargest activations")
    for name, seen in sorted(inspector.outputs.items(), key=lambda x: -x[1].largest)[:5]:
        print(f"  {name:40s} {seen.largest:10.3g}")


def _measure(loop: Orchestrator, frames: int) -> None:
    """Train again, and print memory and time."""
    times, memory = StageTimes(), MemoryProfile()
    for observer in (times, memory, _stop_at(frames)):
        loop.observers.add(observer)
    loop.run()
    print("\n" + "\n".join(describe(memory)))
    print("\ntime, without the checks")
    total = sum(times.seconds.values())
    for name, spent in sorted(times.seconds.items(), key=lambda x: -x[1]):
        print(f"  {name:24s} {spent:8.2f} s  {spent / total:6.1%}")


def _profile(loop: Orchestrator, frames: int) -> None:
    """Train a third time under the profiler, which itself costs time and memory."""
    profiler = Profiler(3, loop.run_log.folder / "trace.json", lambda _: None)
    loop.observers.add(profiler)
    loop.observers.add(_stop_at(frames))
    loop.observers.add(StopWhen(lambda _: profiler.done))
    loop.run()
    for name, share in profiler.operations(5):
        print(f"    of updates: {name[:40]:40s} {share:6.1%}")
