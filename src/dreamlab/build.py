"""The composition root: configuration in, a ready loop out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dreamlab.config import LabConfig, to_yaml
from dreamlab.core import rng as random
from dreamlab.core.config import Part, convert, dump
from dreamlab.core.errors import CheckpointError, ConfigError, LabError
from dreamlab.core.files import disk_errors, write_text
from dreamlab.core.text import print
from dreamlab.core.types import Decision, Mode, Spec, Step
from dreamlab.core.workflow import Workflow
from dreamlab.data.source import BufferContext
from dreamlab.data.store import Store
from dreamlab.data.storage import choose
from dreamlab.engine import accelerate
from dreamlab.engine.checkpoint import Checkpoints
from dreamlab.engine.collector import Collector
from dreamlab.engine.evaluator import Evaluator
from dreamlab.engine.feasible import check_feasible
from dreamlab.engine.logger import Jsonl, Logger, Sink, TensorBoard, WandB
from dreamlab.engine.loop_parts import EngineConfig, LoopParts
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.phase_scheduler import check_phases
from dreamlab.engine.terminal import Terminal
from dreamlab.engine.watch import Floor, disk_free, memory_available, not_finite
from dreamlab.envs import suites
from dreamlab.envs.drawing import painter
from dreamlab.envs.normalize import Normalizer
from dreamlab.envs.vector import EnvConfig, Envs, make_env, spec_of
from dreamlab.interop import hub, strangers
from dreamlab.results.compare import Member
from dreamlab.results.learning_curve import learning_curve
from dreamlab.results.published import find_published
from dreamlab.runs.folder import Claim, check_folder, claimed
from dreamlab.runs.options import counts, differences, flatten
from dreamlab.runs.run import Run, command_line, new_folder


def check(config: LabConfig) -> type[Workflow[Any]]:
    """Raise if the configuration names what does not exist or cannot train; allocate nothing."""
    cls = config.workflow.cls("workflow._target_")
    training, env = config.training, config.env
    check_phases(training.phases, cls, config.buffers, training.total_frames)
    check_feasible(training.phases, training.total_frames, config.buffers, env)
    suites.maker(env.suite, env.options)
    _ = config.compute
    return cls


def build_workflow(config: LabConfig, spec: Spec) -> Workflow[Any]:
    """Return the workflow on its device, with the seed of the run."""
    random.seed_all(config.seed)
    with accelerate.one_thread():  # the weights it begins with are those of its seed alone
        workflow: Workflow[Any] = config.workflow.build(spec)
    workflow.to(accelerate.pick_device(config.device))
    for optimizer in workflow.optimizers.values():
        optimizer.accumulate = config.training.accumulate
    return workflow


def build(config: LabConfig, run: Run, terminal: Terminal | None = None) -> Orchestrator:
    """Return the loop for a run folder that exists already."""
    check(config)
    terminal = terminal or Terminal(config.log.terminal, config.name)
    envs = Envs(config.env, random.derive(config.seed, 0))
    workflow = build_workflow(config, envs.spec)
    buffers = build_buffers(config, workflow, envs, run, terminal)
    steps = max((b.steps_per_sample for b in buffers.values()), default=1)
    accelerate.set_up(config.compute, workflow, workflow.rows_per_step(steps))
    collector = Collector(envs, workflow, random.derive(config.seed, 1))
    parts = LoopParts(
        workflow, collector, buffers, build_evaluator(config),
        build_logger(config, run, terminal), terminal, run,
        painter(config.env) if type(workflow).report is not Workflow.report else None,
        published_floor(config, run),
    )  # fmt: skip
    c = config
    engine = EngineConfig(c.log, c.eval, c.report, c.checkpoint, c.watch, c.compute)
    return Orchestrator(engine, config.training.phases, config.training.total_frames, parts)


def published_floor(config: LabConfig, run: Run) -> Floor:
    """Return what published runs of this task reach at least, if the run is to be held to it."""
    if not config.watch.published:
        return lambda frames: None
    member = Member(run, flatten(dump(config)), [])
    curve = find_published(member, None)
    if curve is None:
        raise ConfigError(f"watch.published: nothing is known for {config.env.id}; leave it out")
    first, last = curve.frames[0], curve.frames[-1]
    return lambda frames: curve.floor(frames) if first <= frames <= last else None


def build_evaluator(config: LabConfig) -> Evaluator:
    """Return an evaluator that makes its own environments."""

    def make(num: int, seed: int) -> Envs:
        return Envs(replace(config.env, num_envs=num, vector="sync"), seed)

    return Evaluator(config.eval, make)


def build_logger(config: LabConfig, run: Run, terminal: Terminal) -> Logger:
    """Return the logger with every sink that is switched on."""
    sinks: list[Sink] = [Jsonl(run.folder / "metrics.jsonl"), terminal]
    if config.log.tensorboard:
        sinks.append(TensorBoard(run.folder / "tensorboard"))
    if config.log.wandb:
        sinks.append(WandB(run.folder, config.log, run.folder.name))
    return Logger(sinks)


def build_buffers(
    config: LabConfig, workflow: Workflow[Any], envs: Envs, run: Run, terminal: Terminal
) -> dict[str, Store]:
    """Return the buffers by name; one that does not fit into memory goes to disk, or is refused."""
    buffers: dict[str, Store] = {}
    room, on_gpu = memory_available(), 0
    for number, (name, part) in enumerate(sorted(config.buffers.items())):
        folder = run.folder / "buffers" / name
        place = BufferContext(
            envs.spec, envs.num_envs, random.derive(config.seed, 2, number), workflow.device, folder
        )
        need = buffer_bytes(part, workflow, envs.spec, envs.num_envs)
        chosen = _choose(part, on_gpu + need, workflow.device)
        fitted = _fit(chosen, name, need, room, config.run.on_memory_shortage, run.folder, terminal)
        room -= need if _storage(fitted) in ("ram", "pinned") else 0
        on_gpu += need if _storage(fitted) == "gpu" else 0
        buffers[name] = fitted.build(place)
    return buffers


def _storage(part: Part) -> str:
    """Return where a buffer lives; one that cannot be told lives in RAM."""
    return part.options.get("storage", getattr(part.cls().Config, "storage", "ram"))


def _choose(part: Part, need: int, device: torch.device) -> Part:
    """Return the buffer with a place to live, where that was left open."""
    if _storage(part) != "auto":
        return part
    return replace(part, options={**part.options, "storage": choose("auto", need, device)})


def _fit(
    part: Part, name: str, need: int, room: int, otherwise: str, folder: Path, terminal: Terminal
) -> Part:
    gib = 2**30
    if _storage(part) not in ("ram", "pinned") or need < 0.8 * room:
        return part
    text = f"buffer {name!r} needs {need / gib:.1f} GiB when full, {room / gib:.1f} GiB are free"
    if otherwise != "disk" or "storage" not in part.cls().Config.__dataclass_fields__:
        raise LabError(f"{text}. Lower buffers.{name}.capacity, or set buffers.{name}.max_bytes.")
    if 2.2 * need > disk_free(folder):
        raise LabError(
            f"{text}, and the disk has no room for it either. Lower buffers.{name}.capacity."
        )
    terminal.say(f"{text}: it is kept on disk instead")
    return replace(part, options={**part.options, "storage": "disk"})


def buffer_bytes(part: Part, workflow: Workflow[Any], spec: Spec, num_envs: int) -> int:
    """Return how much a buffer holds when full, from one step's observations, action and extras."""
    extras = sum(v[0].nbytes for v in _example(workflow, spec).extras.values())
    step = sum(s.nbytes for s in spec.obs.values()) + spec.action.nbytes + extras + 4 + 3
    cls = part.cls()
    options = cls.Config(**{k: v for k, v in part.options.items() if k != "sampler"})
    steps = getattr(options, "capacity", None) or (options.length + 1) * num_envs
    total = steps * (step + 8)
    return min(total, getattr(options, "max_bytes", None) or total)


@torch.no_grad()
def _example(workflow: Workflow[Any], spec: Spec) -> Decision:
    """Return a decision on an empty step; no random number of the run is used up."""
    obs = {k: np.zeros((1, *s.shape), s.dtype) for k, s in spec.obs.items()}
    flags = np.zeros(1, bool)
    step = Step(obs, np.zeros(1, np.float32), np.ones(1, bool), flags, flags)
    with random.fork(0):
        saved = {k: v.clone() for k, v in workflow.named_buffers()}
        decision = workflow.act(step, workflow.initial_state(1), Mode.TRAIN)
        for k, v in workflow.named_buffers():
            v.copy_(saved[k])
    return decision


# -- runs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """A run's folder while this process holds it."""

    run: Run
    config: LabConfig
    found: bool
    """The folder held this run already."""
    keep: Callable[[], None]
    """To be called once the run has begun; until then a failure leaves the folder as it was."""


@contextmanager
def open_run(config: LabConfig, trust_code: bool = False) -> Iterator[Opened]:
    """Hold the run folder of this configuration, made new or found.

    A folder that holds a run already goes on with what it was made with: an option that would
    change the numbers is refused. The length may grow (`training.total_frames`), and how a run is
    watched, logged and saved may change. Any other folder must be empty.
    """
    folder = Path(config.run.dir) if config.run.dir else new_folder(config.name)
    if hub.is_hub(folder):
        raise ConfigError(f"{folder} is a policy from a hub: it can be evaluated, not trained")
    with claimed(folder) as claim:
        yield _begin(config, claim) if claim.new else _go_on(config, claim, trust_code)


def _begin(config: LabConfig, claim: Claim) -> Opened:
    run = Run(claim.folder)
    write_text(run.config_path, to_yaml(config))
    run.create(config.name, config.seed, command_line())
    return Opened(run, config, False, claim.keep)


def _go_on(config: LabConfig, claim: Claim, trust_code: bool) -> Opened:
    run = Run(claim.folder)
    old = strangers.read_config(claim.folder, trust_code, quiet=True)
    frames = config.training.total_frames or old.training.total_frames
    merged = replace(config, training=replace(config.training, total_frames=frames))
    check_same(old, merged, run.folder)
    if not run.manifest:  # the process was killed before it could write one, or it was lost
        run.create(config.name, config.seed, command_line())

    def keep() -> None:
        write_text(run.config_path, to_yaml(merged))
        run.entry.config = None  # the index shall read it again
        if frames != old.training.total_frames:
            run.event("extended", total_frames=frames)
        claim.keep()

    return Opened(run, merged, True, keep)


MAY_CHANGE = ("eval", "training.total_frames")
"""Beside what has no effect, what another command may ask of a run that has begun."""


def check_same(old: LabConfig, new: LabConfig, folder: Path) -> None:
    """Raise if a folder's run was made with other options than those given now."""
    tables = [flatten(dump(old)), flatten(dump(new))]
    for key, (has, asked) in differences(tables, "nothing").items():
        if counts(key, *MAY_CHANGE):
            raise ConfigError(
                f"{folder} holds a run with another {key}: it has {has}, you ask for {asked}. "
                "Use another run.dir, or `dreamlab resume` to go on with it."
            )


def train(
    config: LabConfig, terminal: Terminal | None = None, trust_code: bool = False
) -> tuple[Run, str]:
    """Train in the folder of this configuration, or go on there; tell how it ended."""
    check(config)
    give = "Give the run another place with run.dir"
    with disk_errors(give), open_run(config, trust_code) as opened:
        return opened.run, _train(opened, terminal)


def resume(
    folder: Path,
    total_frames: int | None = None,
    terminal: Terminal | None = None,
    trust_code: bool = False,
) -> tuple[Run, str]:
    """Go on with a run by its own configuration, read when nobody else can change it."""
    with disk_errors("A run goes on in its own folder: it must be one that can be written to"):
        check_folder(folder)
        if not (folder / "config.yaml").exists():
            raise ConfigError(f"{folder} is not a run folder: it has no config.yaml")
        if hub.is_hub(folder):
            raise ConfigError(f"{folder} is a policy from a hub: it can be evaluated, not trained")
        with claimed(folder) as claim:
            config = strangers.read_config(folder, trust_code)
            frames = total_frames or config.training.total_frames
            training = replace(config.training, total_frames=frames)
            here = replace(config.run, dir=str(folder))
            config = replace(config, run=here, training=training)
            check(config)
            opened = _go_on(config, claim, trust_code)
            return opened.run, _train(opened, terminal)


def _train(opened: Opened, terminal: Terminal | None) -> str:
    """Train in a folder that is held; return how it ended."""
    run, config = opened.run, opened.config
    terminal = terminal or Terminal(config.log.terminal, config.name)
    go_on = f"What was saved is whole: make room, then `dreamlab resume {run.folder}`"
    with disk_errors(go_on):
        loop = build(config, run, terminal)
        resumed = opened.found and loop.load()
        opened.keep()
        terminal.say(f"{'resuming' if resumed else 'training'} in {run.folder}")
        status = loop.run()
    learning_curve(run.metrics(), run.folder / "report" / "learning_curve.png", config.name)
    final = (run.manifest.get("final_eval") or {}).get("eval/return")
    score = f", eval return {final:.4g}" if final is not None and status == "finished" else ""
    terminal.say(f"{status}: {run.folder}{score}")
    return status


@dataclass(frozen=True)
class Trained:
    """What is needed to use a policy outside of training."""

    config: LabConfig
    workflow: Workflow[Any]
    statistics: dict[str, Any]
    env_frames: int


def load_policy(source: Path | str, which: str = "latest", trust_code: bool = False) -> Trained:
    """Return the policy of a run's checkpoint, of a hub's folder, or of `hub:OWNER/NAME`.

    What came from a hub may name only this package's classes and registered environments, unless
    its code is trusted.
    """
    folder = hub.resolve(source)
    if hub.is_hub(folder) and which != "latest":
        raise LabError(
            f"{source} is a hub's folder: it has no checkpoint {which!r}, only one policy"
        )
    config = strangers.read_config(folder, trust_code)
    with strangers.guarded(folder, trust_code):
        return _load_policy(folder, config, which)


def _load_policy(folder: Path, config: LabConfig, which: str) -> Trained:
    _ = Run(folder)  # a manifest that is damaged is told before anything is built
    probe = make_env(config.env, 0, 0)
    spec = spec_of(probe)
    workflow = build_workflow(config, spec)
    probe.close()
    if hub.is_hub(folder):
        hub.load_weights(folder, workflow)
        _check_finite(workflow, str(folder))
        like = Normalizer(config.env.normalize_obs, config.env.normalize_reward, spec, 1)
        statistics = hub.load_statistics(folder, like.get_state())
        return Trained(config, workflow, statistics, hub.load_frames(folder))
    checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint, _warn)
    state = checkpoints.load(which)
    if state is None:
        raise LabError(f"{folder} has no checkpoint yet")
    workflow.load_state_dict(state["workflow"])
    for optimizer in workflow.optimizers.values():
        optimizer.adopt_average()
    frames, statistics = (state["counters"]["env_frames"], state["collector"]["envs"]["normalizer"])
    _check_finite(workflow, f"{folder}: checkpoint {frames:012d}", {"normalizer": statistics})
    return Trained(config, workflow, statistics, int(frames))


def _check_finite(workflow: Workflow[Any], where: str, *more: Any) -> None:
    """Raise if a policy cannot act because its training had diverged."""
    if (bad := not_finite(workflow, workflow.state_dict(), *more)) is not None:
        raise CheckpointError(
            f"{where}: {bad}: the training had diverged. Try an older one with --checkpoint."
        )


def _warn(text: str) -> None:
    print(text, file=sys.stderr)  # what is measured goes to stdout


def env_config(node: dict[str, Any]) -> EnvConfig:
    """Return the environment part of a composed configuration."""
    return convert(node.get("env", {}), EnvConfig, "env")
