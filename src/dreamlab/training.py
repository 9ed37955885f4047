"""Opens a run directory, trains in it, resumes it, and loads what was trained."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.accel import dispatch
from dreamlab.build import build, build_evaluator, build_workflow, check, find_spec
from dreamlab.config import LabConfig, to_yaml
from dreamlab.core import world
from dreamlab.core.affine import ACTION, Affine, Scaling, scaled_spec
from dreamlab.core.config import dump, load
from dreamlab.core.errors import CheckpointError, ConfigError, LabError
from dreamlab.core.files import disk_errors, write_text
from dreamlab.core.text import print
from dreamlab.core.types import Spec
from dreamlab.core.workflow import Workflow
from dreamlab.engine.actors.options import ActorsConfig
from dreamlab.engine.checkpoint import Checkpoints
from dreamlab.engine.evaluator import EvalConfig, EvalResult
from dreamlab.engine.observer import Observer
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.processes import note_folder
from dreamlab.engine.signals import PREEMPTED, PREEMPTION
from dreamlab.engine.terminal import Terminal
from dreamlab.engine.watch import not_finite
from dreamlab.envs.normalize import Normalizer
from dreamlab.export import hub
from dreamlab.interop import strangers
from dreamlab.results.learning_curve import learning_curve
from dreamlab.runs.folder import Claim, check_folder, claimed
from dreamlab.runs.options import counts, differences, flatten
from dreamlab.runs.run import FollowedRun, Run, command_line, new_folder
from dreamlab.start import begin_from


@dataclass(frozen=True)
class Opened:
    """A run directory while this process holds it."""

    run: Run
    config: LabConfig
    found: bool
    """The run directory already existed."""
    keep: Callable[[], None]
    """Call it once the run has started; until then a failure restores the folder."""


@contextmanager
def open_run(
    config: LabConfig, trust_code: bool = False, command: list[str] | None = None
) -> Iterator[Opened]:
    """Hold the run directory of this configuration, made new or found.

    The run remembers the `command` that started it; None: that of this process.

    A folder that already contains a run keeps its configuration: an option that would
    change the numbers is refused. The length may grow (`training.total_frames`), and how a run is
    watched, logged and saved may change. Any other folder must be empty.
    """
    if not world.is_main():
        yield _follow(config)
        return
    folder = Path(config.run.dir) if config.run.dir else new_folder(config.name)
    if hub.is_hub(folder):
        raise ConfigError(f"{folder} is a policy from a hub: it can be evaluated but not trained")
    with claimed(folder) as claim:
        if claim.new:
            opened = _begin(config, claim, command or command_line())
        else:
            opened = _go_on(config, claim, trust_code)
        _lead(opened)
        yield opened


def _lead(opened: Opened) -> None:
    """Tell the other processes of a run what rank 0 has found."""
    frames, folder = opened.config.training.total_frames, str(opened.run.folder)
    note_folder(opened.run.folder)
    world.broadcast((folder, opened.found, opened.run.saved, frames))


def _follow(config: LabConfig) -> Opened:
    """Return a run's folder as rank 0 has opened it; nothing is written there."""
    folder, found, saved, frames = world.broadcast(("", False, False, None))
    config = replace(
        config,
        run=replace(config.run, dir=folder),
        training=replace(config.training, total_frames=frames),
    )
    return Opened(FollowedRun(Path(folder), saved), config, found, lambda: None)


def _begin(config: LabConfig, claim: Claim, command: list[str]) -> Opened:
    run = Run(claim.folder)
    write_text(run.config_path, to_yaml(config))
    run.create(config.name, config.seed, command)
    return Opened(run, config, False, claim.keep)


def _go_on(config: LabConfig, claim: Claim, trust_code: bool) -> Opened:
    run = Run(claim.folder)
    old = strangers.read_config(claim.folder, trust_code, quiet=True)
    frames = config.training.total_frames or old.training.total_frames
    merged = replace(config, training=replace(config.training, total_frames=frames))
    if config.processes == 1:  # options of several processes wait until there are some again
        merged = replace(merged, distributed=replace(old.distributed, processes=1))
    check_same(old, merged, run.folder)
    if not run.manifest:  # the process was killed before it could write one, or it was lost
        run.create(config.name, config.seed, command_line())

    def keep() -> None:
        write_text(run.config_path, to_yaml(merged))
        run.entry.config = None  # the index shall read it again
        if frames != old.training.total_frames:
            run.event("extended", total_frames=frames, before=old.training.total_frames)
        claim.keep()

    return Opened(run, merged, True, keep)


MAY_CHANGE = (
    "eval", "training.total_frames", "distributed", "devices", "device",
    *(f"actors.{f.name}" for f in fields(ActorsConfig) if f.name != "num"),
)  # fmt: skip
"""Options that a later command may change on a started run, beside those without effect."""


def check_same(old: LabConfig, new: LabConfig, folder: Path) -> None:
    """Raise if a folder's run was made with other options than those given now."""
    tables = [flatten(dump(old)), flatten(dump(new))]
    collects = any(p.collects for p in old.training.phases)
    free = MAY_CHANGE if collects else (*MAY_CHANGE, "env")  # it is only measured there
    for key, (has, asked) in differences(tables, "nothing").items():
        if counts(key, *free):
            raise ConfigError(
                f"{folder} already contains a run with another {key}: {has}, not {asked}. Use "
                f"another run.dir, or `dreamlab resume` to resume it."
            )


@dataclass(frozen=True)
class Where:
    """Devices and number of processes of a resumed run; None: as before."""

    processes: int | None = None
    devices: int | None = None
    device: str | None = None

    def of(self, config: LabConfig) -> LabConfig:
        """Return a run's configuration with these; as many processes as before unless told."""
        if self == AS_BEFORE:
            return config
        device = self.device or config.device
        processes = self.processes or self.devices or config.processes
        on_gpus = config.devices if device in ("auto", "cuda") and self.processes is None else 1
        devices = self.devices or on_gpus
        own = replace(config.distributed, processes=processes)
        return replace(config, device=device, devices=devices, distributed=own)


AS_BEFORE = Where()


def train(
    config: LabConfig,
    terminal: Terminal | None = None,
    trust_code: bool = False,
    command: list[str] | None = None,
) -> tuple[Run, str]:
    """Train in the folder of this configuration, or resume there; tell how it ended."""
    config = with_processes(config, world.size()) if config.processes == 1 else config
    check(config)
    give = "Choose another run.dir"
    with disk_errors(give), open_run(config, trust_code, command) as opened:
        return opened.run, _train(opened, terminal)


def resume(
    folder: Path,
    total_frames: int | None = None,
    terminal: Terminal | None = None,
    trust_code: bool = False,
    checkpoint: str = "latest",
    where: Where = AS_BEFORE,
) -> tuple[Run, str]:
    """Resume a run by its own configuration, read while the run is locked.

    From another checkpoint than the latest the run goes its way again: later ones are set aside.
    """
    with disk_errors("The run directory must be writable to resume"):
        check_resumable(folder)
        if not world.is_main():
            opened = _follow(_of_run(folder, total_frames, where, trust_code, quiet=True))
            return opened.run, _train(opened, terminal, checkpoint)
        with claimed(folder) as claim:
            opened = _go_on(_of_run(folder, total_frames, where, trust_code), claim, trust_code)
            _lead(opened)
            return opened.run, _train(opened, terminal, checkpoint)


def check_resumable(folder: Path) -> None:
    """Raise unless a folder holds a run that can continue."""
    check_folder(folder)
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder} is not a run directory: it has no config.yaml")
    if hub.is_hub(folder):
        raise ConfigError(f"{folder} is a policy from a hub: it can be evaluated but not trained")


def _of_run(
    folder: Path, total_frames: int | None, where: Where, trust_code: bool, quiet: bool = False
) -> LabConfig:
    """Return a run's own configuration, for as many processes as there are now."""
    config = strangers.read_config(folder, trust_code, quiet)
    training = config.training
    training = replace(training, total_frames=total_frames or training.total_frames)
    config = replace(config, run=replace(config.run, dir=str(folder)), training=training)
    config = with_processes(where.of(config), world.size())
    check(config)
    return config


def with_processes(config: LabConfig, processes: int) -> LabConfig:
    """Return a configuration for so many processes; what has no effect on one is kept for later."""
    if config.processes == processes:
        return config
    return replace(config, devices=1, distributed=replace(config.distributed, processes=processes))


def begin(opened: Opened, loop: Orchestrator, checkpoint: str = "latest") -> bool:
    """Restore a loop from a checkpoint, or initialize it; return which."""
    if opened.found and loop.load(checkpoint):
        return True
    if opened.config.start is not None:
        begin_from(opened.config.start, loop, opened.run)
    return False


class LearningCurve(Observer):
    """Draws the returns of a run when it ends, for its folder and for trackers."""

    def __init__(self, loop: Orchestrator, run: Run, title: str) -> None:
        self.loop, self.run, self.title = loop, run, title
        self.drawn = False

    def draw(self) -> Path | None:
        """Draw what there is; None if there are no returns."""
        self.drawn = True
        path = self.run.folder / "report" / "learning_curve.png"
        return learning_curve(self.run.metrics(), path, self.title)

    def finished(self, status: str) -> None:
        if status != "failed" and (path := self.draw()) is not None:
            self.loop.parts.logger.media([path], self.loop.scheduler.clock().count)


def _train(opened: Opened, terminal: Terminal | None, checkpoint: str = "latest") -> str:
    """Train in a folder that is held; return how it ended."""
    run, config = opened.run, opened.config
    shown = config.log.terminal if world.is_main() else "off"
    terminal = terminal or Terminal(shown, config.name)
    go_on = f"Files are written atomically: free disk space, then `dreamlab resume {run.folder}`"
    with disk_errors(go_on):
        loop = build(config, run, terminal)
        resumed = begin(opened, loop, checkpoint)
        opened.keep()
        terminal.say(f"{'resuming' if resumed else 'training'} in {run.folder}")
        curve = LearningCurve(loop, run, config.name)
        if world.is_main():
            loop.observers.add(curve)
        status = loop.run()
    if not world.is_main():
        return status
    if not curve.drawn:  # there was nothing left to train
        curve.draw()
    final = (run.manifest.get("final_eval") or {}) if status == "finished" else {}
    told = {"eval return": final.get("eval/return"), "success": final.get("eval/success")}
    score = "".join(f", {k} {v:.4g}" for k, v in told.items() if v is not None)
    terminal.say(f"{status}: {run.folder}{score}")
    return status


def exit_code(run: Run, status: str) -> int:
    """Return what a command ends with: 0, 130 if it was stopped, 85 if it was preempted."""
    if status == "finished":
        return 0
    return PREEMPTED if run.manifest.get("stopped_by") == PREEMPTION else 130


@dataclass(frozen=True)
class Trained:
    """What is needed to use a policy outside of training."""

    config: LabConfig
    workflow: Workflow[Any]
    statistics: dict[str, Any]
    """Normalization statistics of training; empty if nothing was collected."""
    env_frames: int


def load_policy(source: Path | str, which: str = "latest", trust_code: bool = False) -> Trained:
    """Return the policy of a run's checkpoint, of a hub's folder, or of `hub:OWNER/NAME`.

    What came from a hub may name only this package's classes and registered environments, unless
    its code is trusted.
    """
    folder = hub.resolve(source)
    if hub.is_hub(folder) and which != "latest":
        raise LabError(f"{source} is a hub folder: it has no checkpoint {which!r}, only one policy")
    config = strangers.read_config(folder, trust_code)
    with strangers.guarded(folder, trust_code):
        return _load_policy(folder, config, which)


def _load_policy(folder: Path, config: LabConfig, which: str) -> Trained:
    _ = Run(folder)  # a manifest that is corrupted is told before anything is built
    if hub.is_hub(folder):
        own = find_spec(config, {})
        given = (config.env.normalize_obs, config.env.normalize_reward)
        like = Normalizer(*given, own, 1, _blank_scaling(config, own))
        statistics = hub.load_statistics(folder, like.get_state())
        workflow = build_workflow(config, scaled_spec(own, scaling_of(statistics)))
        hub.load_weights(folder, workflow)
        _check_finite(workflow, str(folder))
        return Trained(config, workflow, statistics, hub.load_frames(folder))
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint, _warn)
    probe = find_spec(config, {}) if config.env.named else None  # what it lacks is told first
    state = checkpoints.load(which)
    if state is None:
        raise LabError(f"{folder} has no checkpoint yet")
    spec = load(Spec, state["spec"], "spec") if probe is None else probe
    if probe is not None:
        spec = scaled_spec(probe, scaling_of(state))
    workflow = build_workflow(config, spec)
    workflow.load_state_dict(state["workflow"])
    for optimizer in workflow.optimizers.values():
        optimizer.adopt_average()
    statistics = state["collector"]["envs"]["normalizer"] if state["collector"] else {}
    if not statistics and state.get("scaling"):
        statistics = {**Normalizer(None, None, spec, 1).get_state(), "scaling": state["scaling"]}
    name = state.get("at", which)  # older checkpoints do not know
    _check_finite(workflow, f"{folder}: checkpoint {name}", {"normalizer": statistics})
    return Trained(config, workflow, statistics, int(state["counters"]["env_frames"]))


def measure(
    trained: Trained, folder: Path, how: EvalConfig, film: bool = False, trust_code: bool = False
) -> EvalResult:
    """Play episodes with a policy that was loaded from `folder`, and return what they came to."""
    reference = dispatch.reference_kernels(trained.config.accel == "off")
    evaluator = build_evaluator(replace(trained.config, eval=how))
    with strangers.guarded(folder, trust_code), reference:
        return evaluator.run(trained.workflow, trained.statistics, film=film)


def scaling_of(state: dict[str, Any]) -> Scaling:
    """Return how the data was normalized that a policy learned from; older states have none."""
    return {k: Affine.of_state(a) for k, a in state.get("scaling", {}).items()}


def _blank_scaling(config: LabConfig, spec: Spec) -> Scaling:
    """Return the form of the normalization that a configuration requests."""
    names = {
        name
        for part in config.buffers.values()
        for name, mode in getattr(part.config, "normalize", {}).items()
        if mode != "none"
    }
    shapes = {**{k: s.shape for k, s in spec.obs.items()}, ACTION: spec.action.shape}
    return {k: Affine(np.zeros(s), np.ones(s)) for k, s in shapes.items() if k in names}


def _check_finite(workflow: Workflow[Any], where: str, *more: Any) -> None:
    """Raise if a policy cannot act because its training had diverged."""
    if (bad := not_finite(workflow, workflow.state_dict(), *more)) is not None:
        raise CheckpointError(
            f"{where}: {bad}: training had diverged. Try an older checkpoint with --checkpoint."
        )


def _warn(text: str) -> None:
    print(text, file=sys.stderr)  # what is measured goes to stdout
