"""Estimates the cost of a run before it is started: parameters, memory, disk, hours."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

import torch

from dreamlab.core.phase import Phase
from dreamlab.data.store import Store
from dreamlab.engine.actors.collector import RemoteCollector
from dreamlab.engine.collector import Collector
from dreamlab.engine.orchestrator import Orchestrator

MAX_TICKS = 2_000
GPU_ROW = "GPU memory"
"""The row of `dreamlab plan` that a sweep reads."""
CONTEXT_BYTES = 2**30
"""GPU memory of a process outside torch's allocator: CUDA context and kernels."""


@dataclass(frozen=True)
class Plan:
    """What a run needs; bytes are those at full replay."""

    parameters: int
    buffer_bytes: dict[str, int]
    checkpoint_bytes: int
    disk_bytes: int
    tick_s: float
    """Seconds per tick: one decision of every environment, stored; 0 if nothing is collected."""
    decisions_per_s: float
    update_s: float
    """Seconds per update: one batch sampled and every update hook run on it."""
    env_frames: int
    updates: float
    hours: float
    gpu_bytes: int
    """Peak GPU memory; 0 without a GPU."""


def measure(loop: Orchestrator, seconds: float = 5.0) -> tuple[float, float]:
    """Return the seconds of one tick and of one update, by doing some of each."""
    phases = list(enumerate(loop.scheduler.phases))
    index, phase = next(((i, p) for i, p in phases if p.update_hooks), phases[0])
    source, collector = loop.sources[index], loop.parts.collector
    tick_s = 0.0 if collector is None else _tick_s(loop, collector, phase, seconds)
    if not phase.update_hooks or source is None:
        return tick_s, 0.0
    times: list[float] = []
    batch = source.sample()
    start = time.monotonic()
    while len(times) < 3 or (time.monotonic() - start < seconds / 2 and len(times) < 200):
        began = time.monotonic()
        if phase.train_ratio is not None:
            batch = source.sample()
        for name in phase.update_hooks:
            getattr(loop.workflow, name)(batch, phase=phase)
        times.append(time.monotonic() - began)
    return tick_s, sorted(times)[len(times) // 2]


def _tick_s(
    loop: Orchestrator, collector: Collector | RemoteCollector, phase: Phase, seconds: float
) -> float:
    """Return the seconds of one tick; as many are done as the first batch needs."""
    store = cast(Store, loop.parts.buffers[phase.buffer])
    ticks, start = 0, time.monotonic()
    while ticks < MAX_TICKS and (
        time.monotonic() - start < seconds / 2 or not _can_sample(loop, phase, ticks)
    ):
        step = phase.collect_ticks if phase.train_ratio is None else 8
        collector.collect(step, store)
        ticks += step
        if phase.train_ratio is None and store.ready():
            break
    return (time.monotonic() - start) / max(ticks, 1)


def _can_sample(loop: Orchestrator, phase: Phase, ticks: int) -> bool:
    length = getattr(getattr(loop.parts.buffers[phase.buffer], "config", None), "length", 1)
    return ticks > 2 * length + 2


def updates_of(phase: Phase, frames: int, loop: Orchestrator) -> float:
    """Return how many updates a phase makes while it collects `frames`."""
    if phase.duration_updates is not None:
        return float(phase.duration_updates)
    if not phase.update_hooks:
        return 0.0
    if phase.duration_cycles is not None:
        return float(phase.duration_cycles)
    collector = loop.parts.collector
    assert collector is not None, "only phases that collect are measured in frames"
    decisions = frames / collector.envs.frames_per_tick
    if phase.train_ratio is None:
        return decisions / (phase.collect_ticks * collector.envs.num_envs)
    return decisions * phase.train_ratio / loop.parts.buffers[phase.buffer].steps_per_sample


def make_plan(loop: Orchestrator, buffer_bytes: dict[str, int], seconds: float = 5.0) -> Plan:
    """Measure a loop that was built in a scratch folder, and estimate what its phases will take."""
    tick_s, update_s = measure(loop, seconds)
    collector, scheduler = loop.parts.collector, loop.scheduler
    frames_per_tick = collector.envs.frames_per_tick * collector.envs.num_envs if collector else 1
    planned = scheduler.planned_frames()
    fixed = [p.duration_steps or 0 for p in scheduler.phases]
    if scheduler.total_frames is not None and scheduler.extended >= 0:
        fixed[scheduler.extended] = max(0, planned - sum(fixed[: scheduler.extended]))
    updates = sum(updates_of(p, f, loop) for p, f in zip(scheduler.phases, fixed, strict=True))
    ticks = sum(fixed) / frames_per_tick
    weights = sum(p.numel() for p in loop.workflow.parameters())
    checkpoint = weights * 4 * 3  # weights and two moments
    kept = max(2, loop.config.checkpoint.keep) + int(loop.config.checkpoint.keep_best)
    return Plan(
        parameters=weights,
        buffer_bytes=buffer_bytes,
        checkpoint_bytes=checkpoint,
        disk_bytes=sum(buffer_bytes.values()) + kept * checkpoint,
        tick_s=tick_s,
        decisions_per_s=collector.envs.num_envs / tick_s if collector and tick_s else 0.0,
        update_s=update_s,
        env_frames=sum(fixed),
        updates=updates,
        hours=(ticks * tick_s + updates * update_s) / 3600,
        gpu_bytes=_gpu_bytes(loop.workflow.device),
    )


def _gpu_bytes(device: torch.device) -> int:
    """Return what this process has taken of a GPU at most; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    return torch.cuda.max_memory_reserved(device) + CONTEXT_BYTES
