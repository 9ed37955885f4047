"""The composition root: configuration in, a ready loop out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dreamlab.config import LabConfig
from dreamlab.core import rng as random
from dreamlab.core.config import Part, convert, dump
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.types import Decision, Mode, Spec, Step
from dreamlab.core.workflow import Workflow
from dreamlab.data.buffer import Buffer, BufferContext
from dreamlab.data.storage import choose
from dreamlab.engine import accelerate
from dreamlab.engine.collector import Collector
from dreamlab.engine.evaluator import Evaluator
from dreamlab.engine.feasible import check_feasible
from dreamlab.engine.logger import Jsonl, Logger, Sink, TensorBoard, WandB
from dreamlab.engine.loop_parts import LoopParts
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.phase_scheduler import check_phases
from dreamlab.engine.terminal import Terminal
from dreamlab.engine.watch import Floor, disk_free, memory_available
from dreamlab.envs import suites
from dreamlab.envs.drawing import painter
from dreamlab.envs.vector import EnvConfig, Envs
from dreamlab.results.compare import Member
from dreamlab.results.published import find_published
from dreamlab.runs.options import flatten
from dreamlab.runs.run import Run


def check(config: LabConfig) -> type[Workflow[Any]]:
    """Raise if the configuration names what does not exist or cannot train; allocate nothing."""
    cls = config.workflow.cls("workflow._target_")
    training, env = config.training, config.env
    check_phases(training.phases, cls, config.buffers, training.total_frames)
    check_feasible(training.phases, training.total_frames, config.buffers, env)
    suites.maker(env.suite, env.options)
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
    accelerate.set_up(config, workflow, workflow.rows_per_step(steps))
    collector = Collector(envs, workflow, random.derive(config.seed, 1))
    parts = LoopParts(
        workflow, collector, buffers, build_evaluator(config),
        build_logger(config, run, terminal), terminal, run,
        painter(config.env) if type(workflow).report is not Workflow.report else None,
        published_floor(config, run),
    )  # fmt: skip
    return Orchestrator(config, config.training.phases, config.training.total_frames, parts)


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
) -> dict[str, Buffer]:
    """Return the buffers by name; one that does not fit into memory goes to disk, or is refused."""
    buffers: dict[str, Buffer] = {}
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
    return getattr(part.config, "storage", "ram")


def _choose(part: Part, need: int, device: torch.device) -> Part:
    """Return the buffer with a place to live, where that was left open."""
    if _storage(part) != "auto":
        return part
    return part.but(storage=choose("auto", need, device))


def _fit(
    part: Part, name: str, need: int, room: int, otherwise: str, folder: Path, terminal: Terminal
) -> Part:
    gib = 2**30
    if _storage(part) not in ("ram", "pinned") or need < 0.8 * room:
        return part
    text = f"buffer {name!r} needs {need / gib:.1f} GiB when full, {room / gib:.1f} GiB are free"
    if otherwise != "disk" or not hasattr(part.config, "storage"):
        raise LabError(f"{text}. Lower buffers.{name}.capacity, or set buffers.{name}.max_bytes.")
    if 2.2 * need > disk_free(folder):
        raise LabError(
            f"{text}, and the disk has no room for it either. Lower buffers.{name}.capacity."
        )
    terminal.say(f"{text}: it is kept on disk instead")
    return part.but(storage="disk")


def buffer_bytes(part: Part, workflow: Workflow[Any], spec: Spec, num_envs: int) -> int:
    """Return how much a buffer holds when full, from one step's observations, action and extras."""
    extras = sum(v[0].nbytes for v in _example(workflow, spec).extras.values())
    step = sum(s.nbytes for s in spec.obs.values()) + spec.action.nbytes + extras + 4 + 3
    options = part.config
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


def env_config(node: dict[str, Any]) -> EnvConfig:
    """Return the environment part of a composed configuration."""
    return convert(node.get("env", {}), EnvConfig, "env")
