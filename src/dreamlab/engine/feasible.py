"""Refuses, before anything is allocated, a curriculum that could never train."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.workflow import Workflow
from dreamlab.data.source import BufferConfig
from dreamlab.engine.phase_scheduler import PhaseScheduler
from dreamlab.envs.vector import EnvConfig


def check_feasible(
    phases: Sequence[Phase],
    total_frames: int | None,
    buffers: Mapping[str, Part],
    env: EnvConfig,
    processes: int = 1,
) -> None:
    """Raise if a buffer is too small for its batches, or a phase too short for its first one.

    Frames are counted over all processes, and each stores its share of them.
    """
    configs = {k: c for k, p in buffers.items() if isinstance(c := p.config, BufferConfig)}
    needed = {k: _first_batch(c, k, env.num_envs) for k, c in configs.items()}
    stored = dict.fromkeys((*buffers, *(p.buffer for p in phases)), 0.0)
    learns = False
    for phase, frames in _reached(phases, total_frames, env, processes):
        _check_phase(configs, phase)
        stored[phase.buffer] += _steps_of(phase, frames / processes, env)
        if phase.update_hooks:
            for name in phase.draws_from:
                _check_filled(phase, name, stored[name], needed.get(name, 0))
            learns = True
    if not learns and any(p.update_hooks for p in phases):
        first = next(p.name for p in phases if p.update_hooks)
        raise ConfigError(
            f"training.total_frames: must be more than {total_frames:,}: training ends before "
            f"phase {first!r} starts, so no update would happen"
        )


def check_windows(
    phases: Sequence[Phase], buffers: Mapping[str, Part], workflow: type[Workflow[Any]]
) -> None:
    """Raise if a workflow would learn from windows as what they are not."""
    configs = {k: c for k, p in buffers.items() if isinstance(c := p.config, BufferConfig)}
    for phase in phases:
        for name in phase.draws_from if phase.update_hooks else ():
            if name in configs and (fault := _fault(configs[name], workflow)):
                raise ConfigError(f"phase {phase.name!r}: buffers.{name}: {fault}")


def _fault(config: BufferConfig, workflow: type[Workflow[Any]]) -> str:
    """Return why a workflow cannot learn from these windows; empty if it can."""
    name, form = workflow.__name__, config.window()
    if config.pads and not workflow.reads_padding:
        return (
            f"pad: edge: {name} would train on the padding beyond an episode as if it had "
            f"happened: remove pad, or use windows: across"
        )
    if config.crosses and workflow.within_episodes:
        return f"{name} would predict from one episode into the next: use windows: inside"
    if form is not None and form[1] < workflow.least_length:
        return f"length={form[1]}: {name} needs windows of at least {workflow.least_length} steps"
    return ""


def _first_batch(config: BufferConfig, name: str, num_envs: int) -> int:
    try:
        return config.first_batch(num_envs)
    except ValueError as error:
        raise ConfigError(f"buffers.{name}: {error}") from None


def _check_phase(configs: Mapping[str, BufferConfig], phase: Phase) -> None:
    """Raise if a buffer cannot do for a phase what it asks of it."""
    used = {*([phase.buffer] if phase.collects else []), *phase.draws_from} & configs.keys()
    for name in sorted(used):
        try:
            if phase.collects and name == phase.buffer and not configs[name].stores:
                raise ValueError("it is read-only: collect into another buffer")
            configs[name].check_phase(phase)
        except ValueError as error:
            raise ConfigError(f"phase {phase.name!r}: buffers.{name}: {error}") from None
    if phase.sources is not None:
        _check_mix({k: configs[k] for k in phase.sources if k in configs}, phase)


def _check_mix(configs: Mapping[str, BufferConfig], phase: Phase) -> None:
    """Raise if sources cannot share a batch."""
    forms = {k: c.window() for k, c in configs.items()}
    for name, form in forms.items():
        first = next(iter(forms))
        if form is None:
            raise ConfigError(
                f"phase {phase.name!r}: buffers.{name}: it cannot be mixed with other sources"
            )
        if form != forms[first]:
            raise ConfigError(
                f"phase {phase.name!r}: buffers {first!r} and {name!r} are mixed in a batch: they "
                f"must have the same batch, length and context, not {forms[first]} and {form}"
            )


def _check_filled(phase: Phase, name: str, stored: float, needed: int) -> None:
    if stored < needed:
        raise ConfigError(
            f"phase {phase.name!r}: it ends when buffers.{name} holds {stored:,.0f} steps, "
            f"but the first batch needs {needed:,}: no update would happen. Train for longer, or "
            f"reduce min_steps, length or env.num_envs."
        )


def _reached(
    phases: Sequence[Phase], total_frames: int | None, env: EnvConfig, processes: int
) -> list[tuple[Phase, float]]:
    """Return the phases that the training comes to, each with the most env frames it has."""
    out: list[tuple[Phase, float]] = []
    left = math.inf if total_frames is None else float(total_frames)
    extended = PhaseScheduler(phases, total_frames).extended
    for i, phase in enumerate(phases):
        if not phase.collects:
            out.append((phase, 0.0))
            continue
        if left <= 0:
            break
        stretched = total_frames is not None and i == extended
        frames = min(left, math.inf if stretched else _frames_of(phase, env, processes))
        out.append((phase, frames))
        left -= frames
    return out


def _frames_of(phase: Phase, env: EnvConfig, processes: int) -> float:
    """Return the env frames of a phase; unknown for phases counted in updates."""
    if phase.duration_steps is not None:
        return float(phase.duration_steps)
    if phase.duration_cycles is not None:
        per_tick = env.num_envs * env.repeat * processes
        return float(phase.duration_cycles * phase.collect_ticks * per_tick)
    return math.inf


def _steps_of(phase: Phase, frames: float, env: EnvConfig) -> float:
    """Return the steps that so many env frames store: a phase ends with a whole collection.

    Every episode that ends adds one more, a step without a frame; they cannot be told.
    """
    if not math.isfinite(frames):
        return frames
    at_once = phase.collect_ticks * env.num_envs
    return math.ceil(frames / (env.repeat * at_once)) * at_once


__all__ = ["check_feasible"]
