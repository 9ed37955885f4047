"""The composition root: configuration in, a ready loop out."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dreamlab.accel import dispatch
from dreamlab.config import LabConfig, to_yaml
from dreamlab.core import rng as random
from dreamlab.core import world
from dreamlab.core.affine import ACTION, Scaling, scaled_spec
from dreamlab.core.config import Part, convert, dump
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.sharded_init import build_sharded
from dreamlab.core.types import Decision, Mode, Spec, Step
from dreamlab.core.workflow import Workflow
from dreamlab.data.source import Buffer, BufferContext
from dreamlab.data.storage import choose
from dreamlab.engine import accelerate
from dreamlab.engine.actors.background import BackgroundEvaluator
from dreamlab.engine.actors.cluster import RayActors
from dreamlab.engine.actors.collector import RemoteCollector, Streams
from dreamlab.engine.actors.local import LocalActors
from dreamlab.engine.actors.loop import ActorLoop
from dreamlab.engine.actors.options import check_actors
from dreamlab.engine.actors.records import LogProcess
from dreamlab.engine.actors.worker import Worker
from dreamlab.engine.collector import Collector
from dreamlab.engine.evaluator import Evaluator
from dreamlab.engine.feasible import check_feasible, check_windows
from dreamlab.engine.logger import About, Jsonl, LogConfig, Logger, Sink
from dreamlab.engine.loop_parts import LoopParts
from dreamlab.engine.observer import Observers
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.phase_scheduler import check_phases
from dreamlab.engine.processes import DistributedConfig
from dreamlab.engine.report import Known
from dreamlab.engine.tensorboard_sink import TensorBoard
from dreamlab.engine.terminal import Terminal
from dreamlab.engine.wandb_sink import WandB
from dreamlab.engine.watch import Floor, disk_free, memory_available
from dreamlab.envs import suites
from dreamlab.envs.drawing import painter
from dreamlab.envs.entry_names import entry_names
from dreamlab.envs.normalize import Normalizer
from dreamlab.envs.vector import EnvConfig, Envs, make_env, spec_of
from dreamlab.results.compare import Member
from dreamlab.results.published import find_published
from dreamlab.runs.options import counts, flatten
from dreamlab.runs.run import Run


def check(config: LabConfig) -> type[Workflow[Any]]:
    """Raise if the configuration names what does not exist or cannot train; allocate nothing."""
    cls = config.workflow.cls("workflow._target_")
    training, env = config.training, config.env
    check_phases(training.phases, cls, config.buffers, training.total_frames)
    check_actors(config.actors, training.phases, config.buffers)
    if config.actors.num and config.processes > 1:
        raise ConfigError(
            "actors.num: actors feed one learner: leave it out with several processes "
            "(distributed.processes, devices)"
        )
    frames, env_all = training.total_frames, env_of_all(config)
    check_feasible(training.phases, frames, config.buffers, env_all, config.processes)
    check_windows(training.phases, config.buffers, cls)
    check_measured(config)
    if config.compile and config.watch.check_every_update:
        raise ConfigError(
            "watch.check_every_update: looks at values within what compile=true compiles: leave "
            "one of them out (+preset=debug sets the first)"
        )
    if config.eval.policy_alone and not cls.plans:
        raise ConfigError(f"eval.policy_alone has no effect: {cls.__name__} does not plan")
    if env.named:
        suites.maker(env.suite, env.options)
    return cls


def check_measured(config: LabConfig) -> None:
    """Raise if something needs an environment and none is named, or would never happen."""
    phases, env = config.training.phases, config.env
    collects = any(p.collects for p in phases)
    if not env.named:
        needing = [p.name for p in phases if {"collect", "evaluate"} & set(p.workflow_hooks)]
        if needing:
            raise ConfigError(f"env.id is required: phase {needing[0]!r} needs an environment")
        if config.eval.every_frames or config.eval.every_updates:
            raise ConfigError("eval: evaluation needs an environment: set env.id")
    if all(p.collects for p in phases if p.update_hooks):
        _refuse_period(
            config, "every_updates", "every phase with updates collects: use every_frames"
        )
    if collects:
        return
    for name, options in (("eval", config.eval), ("report", config.report)):
        if options.every_frames and not options.every_updates:
            raise ConfigError(
                f"{name}.every_frames has no effect: no phase collects: use every_updates"
            )
    if env.normalize_obs or env.normalize_reward:
        raise ConfigError(
            "env: normalization statistics are collected from the environment, and "
            "no phase collects"
        )
    if config.training.total_frames is not None:
        raise ConfigError(
            "training.total_frames has no effect: no phase collects: set "
            "duration_updates of the phases"
        )


def _refuse_period(config: LabConfig, name: str, why: str) -> None:
    """Raise if something is to happen by a count that has no effect in these phases."""
    for section in ("log", "eval", "report", "checkpoint"):
        options = getattr(config, section)
        if getattr(options, name) not in (getattr(type(options), name), 0):
            raise ConfigError(f"{section}.{name} has no effect: {why}")


def build_workflow(config: LabConfig, spec: Spec) -> Workflow[Any]:
    """Return the workflow on its device, with the seed of the run."""
    random.seed_all(config.seed)
    with accelerate.one_thread():  # the weights it starts with are those of its seed alone
        workflow = _made(config, spec, accelerate.take_device(config.device))
    if world.rank() > 0:  # same weights, own random stream
        random.seed_all(world.derive(config.seed, 3))
    for optimizer in workflow.optimizers.values():
        optimizer.accumulate = config.training.accumulate
    return workflow


def _made(config: LabConfig, spec: Spec, device: torch.device) -> Workflow[Any]:
    """Return a workflow as it begins, on its device: whole, or this process's part of it."""
    options = config.distributed
    if not options.shard or world.all_processes() == 1:
        return config.workflow.build(spec).to(device)
    accelerate.keep_memory(False)
    dispatch.set_reference(True)  # kernels and fused code read weights by themselves
    workflow = build_sharded(lambda: config.workflow.build(spec), options.shard_least, device)
    workflow.sharded = True
    return workflow


def build(config: LabConfig, run: Run, terminal: Terminal | None = None) -> Orchestrator:
    """Return the loop for a run directory that exists already."""
    check(config)
    if config.processes not in (1, world.size()):
        raise ConfigError(
            f"distributed.processes={config.processes}, but this process is one of {world.size()}: "
            "start it with `dreamlab train` or torchrun"
        )
    if world.size() == 1:  # those that a run of several had have no effect
        config = replace(config, distributed=DistributedConfig())
    terminal = terminal or Terminal(config.log.terminal, config.name)
    collects = any(p.collects for p in config.training.phases)
    scaling = find_scaling(config)
    local = collects and not config.actors.num
    envs = Envs(config.env, world.derive(config.seed, 0), scaling) if local else None
    workflow = build_workflow(config, find_spec(config, scaling) if envs is None else envs.spec)
    buffers = build_buffers(config, workflow, run, terminal)
    steps = max((b.steps_per_sample for b in buffers.values()), default=1)
    looked_at = config.watch.check_every_update  # what is compiled cannot be looked into
    compute = replace(config, compile=False) if looked_at else config
    accelerate.set_up(compute, workflow, workflow.rows_per_step(steps))
    observers = Observers()
    seed = world.derive(config.seed, 1)
    collector = Collector(envs, workflow, seed, observers) if envs is not None else None
    if config.actors.num:
        collector = build_actors(config, run, workflow, scaling, observers)
    paints = config.env.named and type(workflow).report is not Workflow.report
    assembles = config.distributed.assemble
    parts = LoopParts(
        workflow, collector, buffers,
        build_evaluator(config, scaling) if config.env.named and assembles else None,
        build_logger(config, run, terminal), terminal, run,
        Known(painter(config.env), entry_names(config.env)) if paints else Known(),
        published_floor(config, run), observers, scaling,
    )  # fmt: skip
    cls = Orchestrator
    if config.actors.num:
        cls = ActorLoop
        parts.background = BackgroundEvaluator(partial(make_evaluation, config, scaling))
    return cls(config, config.training.phases, config.training.total_frames, parts)


# -- actors ---------------------------------------------------------------------------------------


def env_of_all(config: LabConfig) -> EnvConfig:
    """Return the environment with as many copies as all actors have together."""
    return replace(config.env, num_envs=config.env.num_envs * max(1, config.actors.num))


def build_actors(
    config: LabConfig, run: Run, workflow: Workflow[Any], scaling: Scaling, observers: Observers
) -> RemoteCollector:
    """Return what stores the steps of actors; they start when the loop does."""
    probe, whole = make_env(config.env, 0, 0), env_of_all(config)
    frames_per_tick, own = config.env.repeat * int(probe.frames_per_step), spec_of(probe)
    probe.close()
    given = (whole.normalize_obs, whole.normalize_reward)
    normalizer = Normalizer(*given, own, whole.num_envs, scaling)
    streams = Streams(whole.num_envs, workflow.spec, frames_per_tick, normalizer)
    make = partial(make_worker, config, scaling)
    name = f"{run.folder.name}-{zlib.crc32(str(run.folder.resolve()).encode()):08x}"
    remote = config.actors.where == "ray"
    transport = RayActors(config.actors, make, name) if remote else LocalActors(make)
    return RemoteCollector(config.actors, workflow, streams, transport, observers)


def make_worker(config: LabConfig, scaling: Scaling, index: int, generation: int) -> Worker:
    """Return actor `index`, in the process that it runs in: on the CPU, one thread."""
    config = replace(config, device="cpu", threads=1, compile=False)
    who = (index, generation)
    envs = Envs(config.env, random.derive(config.seed, 3, *who), scaling)
    workflow = build_workflow(config, envs.spec)
    accelerate.set_up(config, workflow, 1)
    random.seed_all(random.derive(config.seed, 4, *who))
    collector = Collector(envs, workflow, random.derive(config.seed, 5, *who))
    return Worker(collector, lambda: accelerate.autocast(config, workflow.device))


def make_evaluation(config: LabConfig, scaling: Scaling) -> tuple[Evaluator, Workflow[Any]]:
    """Return what an evaluation in its own process needs: on the CPU, one thread."""
    config = replace(config, device="cpu", threads=1, compile=False)
    workflow = build_workflow(config, find_spec(config, scaling))
    accelerate.set_up(config, workflow, 1)
    return build_evaluator(config, scaling), workflow


def find_scaling(config: LabConfig) -> Scaling:
    """Return how the data that is learned from is normalized, by observation and for the action."""
    found: Scaling = {}
    owner: dict[str, str] = {}
    for name, part in sorted(config.buffers.items()):
        if (tells := getattr(part.cls(), "scaling_of", None)) is None:
            continue
        for key, affine in tells(part.config).items():
            if key in found and found[key].differs(affine):
                raise ConfigError(
                    f"buffers {owner[key]!r} and {name!r} normalize {key!r} differently: use "
                    "the same normalization for both"
                )
            found[key], owner[key] = affine, name
    if config.env.named and found:
        _check_scaling(config.env, found, owner)
    return found


def _check_scaling(env: EnvConfig, scaling: Scaling, owner: dict[str, str]) -> None:
    """Raise if an environment would normalize a second time what the data's statistics do."""
    if ACTION in scaling and env.scale_actions:
        raise ConfigError(
            f"buffers.{owner[ACTION]}.normalize: the dataset's actions are in the environment's "
            f"own units: set env.scale_actions=false"
        )
    if env.normalize_obs is not None:
        name = next(iter(owner))
        raise ConfigError(f"buffers.{owner[name]}.normalize: remove env.normalize_obs")


def find_spec(config: LabConfig, scaling: Scaling | None = None) -> Spec:
    """Return what observations and actions look like: from the environment, or from the data.

    A `scaling` that is given is used instead of that of the data, which may be gone.
    """
    if config.env.named:
        probe = make_env(config.env, 0, 0)
        spec = spec_of(probe)
        probe.close()
        return scaled_spec(spec, find_scaling(config) if scaling is None else scaling)
    for part in config.buffers.values():
        if (tells := getattr(part.cls(), "spec_of", None)) is not None:
            return tells(part.config)
    raise ConfigError(
        "env.id: without an environment no observation and action spaces are known: set it, or "
        "use a source such as dataset or run_replay"
    )


def published_floor(config: LabConfig, run: Run) -> Floor:
    """Return what published runs of this task reach at least, if the run is to be held to it."""
    if not config.watch.published:
        return lambda frames: None
    member = Member(run, flatten(dump(config)), [])
    curve = find_published(member, None)
    if curve is None:
        raise ConfigError(f"watch.published: no published curve for {config.env.id}; remove it")
    first, last = curve.frames[0], curve.frames[-1]
    return lambda frames: curve.floor(frames) if first <= frames <= last else None


def build_evaluator(config: LabConfig, scaling: Scaling | None = None) -> Evaluator:
    """Return an evaluator that makes its own environments."""

    def make(num: int, seed: int) -> Envs:
        return Envs(replace(config.env, num_envs=num, vector="sync"), seed, scaling)

    return Evaluator(config.eval, make)


def build_logger(config: LabConfig, run: Run, terminal: Terminal) -> Logger:
    """Return the logger with every sink that is switched on; rank 0 alone has any."""
    if not world.is_main():
        return Logger([])
    make = partial(make_sinks, config.log, about_run(config, run))
    sinks: list[Sink] = [*make()]
    if config.actors.num:  # made here as well: a missing package is an error at once
        names = [type(s).__name__ for s in sinks]
        for sink in sinks:
            sink.close()
        sinks = [*LogProcess(make, names).sinks]
    return Logger([*sinks[:1], terminal, *sinks[1:]])


def make_sinks(log: LogConfig, about: About) -> list[Sink]:
    """Return every sink that is switched on but the terminal, in the process that they are in."""
    sinks: list[Sink] = [Jsonl(about.folder / "metrics.jsonl")]
    sinks += [TensorBoard(about)] if log.tensorboard else []
    return sinks + ([WandB(log, about)] if log.wandb else [])


def about_run(config: LabConfig, run: Run) -> About:
    """Return what trackers are told of a run."""
    options = flatten(dump(config))
    telling = {k: v for k, v in options.items() if counts(k)}
    return About(config.name, run.folder, to_yaml(config), options, telling, config.run.tags)


def build_buffers(
    config: LabConfig, workflow: Workflow[Any], run: Run, terminal: Terminal
) -> dict[str, Buffer]:
    """Return the buffers by name; one that does not fit into memory goes to disk, or is refused."""
    buffers: dict[str, Buffer] = {}
    room, on_gpu = memory_available() // world.local_size(), 0
    spec, num_envs = workflow.spec, env_of_all(config).num_envs
    extras = _example(workflow).extras if config.buffers else {}
    for number, (name, part) in enumerate(sorted(config.buffers.items())):
        folder = run.folder / "buffers" / name
        folder = folder / f"rank{world.rank()}" if world.rank() else folder
        seed = world.derive(config.seed, 2, number)
        place = BufferContext(spec, num_envs, seed, workflow.device, folder, extras)
        need = buffer_bytes(part, workflow, num_envs)
        chosen = _choose(part, on_gpu + need, workflow.device)
        fitted = _fit(chosen, name, need, room, config.run.on_memory_shortage, run.folder, terminal)
        room -= need if _storage(fitted) in ("ram", "pinned") else 0
        on_gpu += need if _storage(fitted) == "gpu" else 0
        buffers[name] = fitted.build(place)
        for note in getattr(buffers[name], "notes", ()):
            terminal.say(note)
            run.event("message", text=note)
    return buffers


def _storage(part: Part) -> str:
    """Return where a buffer is stored: in RAM if unspecified."""
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
        raise LabError(f"{text}. Reduce buffers.{name}.capacity, or set buffers.{name}.max_bytes.")
    if 2.2 * need > disk_free(folder):
        raise LabError(
            f"{text}, and neither does the disk have enough space. Reduce buffers.{name}.capacity."
        )
    terminal.say(f"{text}: storing it on disk instead")
    return part.but(storage="disk")


def buffer_bytes(part: Part, workflow: Workflow[Any], num_envs: int) -> int:
    """Return how much a buffer holds when full, from one step's observations, action and extras."""
    spec = workflow.spec
    extras = sum(v[0].nbytes for v in _example(workflow).extras.values())
    options = part.config
    mapped = getattr(options, "maps_images", False)  # images that stay on the disk
    obs = sum(s.nbytes for s in spec.obs.values() if not (mapped and s.is_image))
    step = obs + spec.action.nbytes + extras + 4 + 3
    total = options.most_steps(num_envs) * (step + 8)
    return min(total, getattr(options, "max_bytes", None) or total)


@torch.no_grad()
def _example(workflow: Workflow[Any]) -> Decision:
    """Return a decision on an empty step; no random number of the run is used up."""
    obs = {k: np.zeros((1, *s.shape), s.dtype) for k, s in workflow.spec.obs.items()}
    flags = np.zeros(1, bool)
    step = Step(obs, np.zeros(1, np.float32), np.ones(1, bool), flags, flags)
    with random.fork(0), world.alone():
        saved = {k: v.clone() for k, v in workflow.named_buffers()}
        decision = workflow.act(step, workflow.initial_state(1), Mode.TRAIN)
        for k, v in workflow.named_buffers():
            v.copy_(saved[k])
    return decision


def env_config(node: dict[str, Any]) -> EnvConfig:
    """Return the environment part of a composed configuration."""
    return convert(node.get("env", {}), EnvConfig, "env")
