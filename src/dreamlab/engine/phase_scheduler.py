"""Decides what happens next in a run. Knows phases and counters, nothing of learning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

from dreamlab.core.clock import Clock
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.phase import ENGINE_HOOKS, Phase
from dreamlab.core.workflow import Workflow

UPDATE = "update"


def check_phases(
    phases: Sequence[Phase],
    workflow: type[Workflow[Any]],
    buffers: Iterable[str],
    total_frames: int | None = None,
) -> None:
    """Raise before anything is allocated if a phase names what does not exist or cannot run."""
    hooks, names = {*ENGINE_HOOKS, *workflow.hooks()}, set(buffers)
    if not phases:
        raise ConfigError("training.phases: at least one phase is needed")
    for phase in phases:
        where = f"phase {phase.name!r} of {workflow.__name__}"
        for name in phase.workflow_hooks:
            if name not in hooks:
                raise ConfigError(unknown("hook", name, hooks, where))
        wanted = [*(phase.draws_from if phase.update_hooks else ())]
        wanted += [phase.buffer] if phase.collects else []
        for name in wanted:
            if name not in names:
                raise ConfigError(unknown("buffer", name, names, where))
        if phase.sources is not None and not phase.update_hooks:
            raise ConfigError(f"{where}: sources have no effect: the phase samples no batch")
        _check_proportional(phase, where)
        if phase.fresh_episodes and not phase.collects:
            raise ConfigError(f"{where}: fresh_episodes has no effect: the phase does not collect")
        _check_duration(phase, where)
    if total_frames is not None:
        _check_total(phases, total_frames)


def _check_proportional(phase: Phase, where: str) -> None:
    """Raise if a hook that is to draw in proportion is none, or there is nothing to divide."""
    if phase.proportional and phase.sources is None:
        raise ConfigError(f"{where}: proportional has no effect without sources")
    for name in phase.proportional:
        if name not in phase.update_hooks:
            raise ConfigError(unknown("update hook", name, phase.update_hooks, where))


def _check_total(phases: Sequence[Phase], total_frames: int) -> None:
    """Raise if the length of the training leaves a phase that collects without a frame."""
    last = _last_with_steps(phases)
    if last < 0:
        return
    before = sum(p.duration_steps or 0 for p in phases[:last])
    if before >= total_frames:
        raise ConfigError(
            f"training.total_frames={total_frames} leaves nothing for phase {phases[last].name!r}: "
            f"the phases before it collect {before} frames. Increase it, or shorten those."
        )
    late = [p.name for p in phases[last + 1 :] if p.collects]
    if late:
        raise ConfigError(
            f"training.total_frames is used up by phase {phases[last].name!r}, the last one "
            f"measured in frames: phase {late[0]!r} after it could not collect. Set its "
            f"duration_steps, or remove total_frames."
        )


def _check_duration(phase: Phase, where: str) -> None:
    given = [
        d
        for d in (phase.duration_steps, phase.duration_updates, phase.duration_cycles)
        if d is not None
    ]
    if len(given) != 1:
        raise ConfigError(
            f"{where}: set exactly one of duration_steps, duration_updates, duration_cycles"
        )
    if phase.duration_steps is not None and not phase.collects:
        raise ConfigError(f"{where}: duration_steps counts env frames, so the phase must collect")
    if phase.duration_updates is not None and not phase.update_hooks:
        raise ConfigError(f"{where}: duration_updates needs an update hook")
    if phase.type != "online" and phase.collects:
        raise ConfigError(f"{where}: a phase of type {phase.type} cannot collect")
    if phase.type == "eval_only" and phase.update_hooks:
        raise ConfigError(f"{where}: an eval_only phase cannot call {phase.update_hooks[0]!r}")
    if phase.train_ratio is not None and not phase.collects:
        raise ConfigError(
            f"{where}: train_ratio counts collected decisions, so the phase must collect"
        )


class PhaseScheduler:
    """A state machine over phases; a phase is a cycle of stages.

    The stages are the phase's hooks in order, all update hooks together as one (`update`): they
    share a batch, and with a train ratio the stage repeats until the updates owed are paid.
    """

    def __init__(self, phases: Sequence[Phase], total_frames: int | None = None) -> None:
        self.phases = list(phases)
        self.total_frames = total_frames
        self.extended = _last_with_steps(self.phases)
        self.index, self.stage, self.owed, self.started = 0, 0, 0.0, False
        self.frames_in, self.updates_in, self.cycles_in = 0, 0, 0
        self.frames, self.updates, self.cycles = 0, 0, 0

    @property
    def phase(self) -> Phase:
        """Return the current phase, with the progress of the training in it."""
        return self.phases[min(self.index, len(self.phases) - 1)].at(self.progress())

    def next_action(self) -> str | None:
        """Return the stage to run now, or None when the training has ended.

        The last phase stays the current one, so that it continues where the training is prolonged.
        """
        while self.index < len(self.phases):
            if self.stage == 0 and self._is_over():
                if self.index == len(self.phases) - 1:
                    return None
                self._next_phase()
            elif (action := self._stages()[self.stage]) == UPDATE and not self._update_due():
                self._next_stage()
            else:
                return action
        return None

    def _stages(self) -> list[str]:
        names = self.phases[self.index].workflow_hooks
        return list(dict.fromkeys(n if n in ENGINE_HOOKS else UPDATE for n in names))

    def _update_due(self) -> bool:
        return self.phases[self.index].train_ratio is None or self.owed >= 1.0

    def advance(
        self, frames: int = 0, decisions: int = 0, updates: int = 0, replayed: int = 0
    ) -> None:
        """Take note of what the current stage did.

        `replayed` is how many steps one batch replays, or 0 if no batch could be drawn yet.
        """
        ratio, stage = self.phases[self.index].train_ratio, self._stages()[self.stage]
        self.frames_in, self.frames = self.frames_in + frames, self.frames + frames
        self.updates_in, self.updates = self.updates_in + updates, self.updates + updates
        if ratio is not None and stage == "collect" and replayed:
            # the first batch is drawn as soon as it can be; no debt is left from before that
            self.owed = self.owed + decisions * ratio / replayed if self.started else 1.0
            self.started = True
        if ratio is not None and stage == UPDATE and updates:
            self.owed -= updates  # stay here until the debt is paid
        else:
            self._next_stage()

    def _next_stage(self) -> None:
        self.stage += 1
        if self.stage == len(self._stages()):
            self.stage = 0
            self.cycles_in, self.cycles = self.cycles_in + 1, self.cycles + 1

    def _is_over(self) -> bool:
        phase = self.phases[self.index]
        if self._out_of_frames():
            return True
        if phase.duration_steps is not None:
            is_stretched = self.total_frames is not None and self.index == self.extended
            return not is_stretched and self.frames_in >= phase.duration_steps
        if phase.duration_updates is not None:
            return self.updates_in >= phase.duration_updates
        return self.cycles_in >= (phase.duration_cycles or 0)

    def _out_of_frames(self) -> bool:
        """Return whether the phase collects and may not any more."""
        if self.total_frames is None or not self.phases[self.index].collects:
            return False
        return self.frames >= self.total_frames

    def _next_phase(self) -> None:
        self._enter(self.index + 1)

    def _enter(self, index: int) -> None:
        self.index = index
        self.stage, self.owed, self.started = 0, 0.0, False
        self.frames_in, self.updates_in, self.cycles_in = 0, 0, 0

    def ends_with_cycle(self) -> bool:
        """Return whether training ends with the current cycle."""
        after = copy(self)
        while after.stage:
            after._next_stage()
        return after.next_action() is None

    @property
    def collects(self) -> bool:
        """Return whether any phase collects."""
        return any(p.collects for p in self.phases)

    def clock(self) -> Clock:
        """Return what time it is."""
        if not self.collects:
            return Clock("updates", self.updates, self.updates)
        now = self.phases[min(self.index, len(self.phases) - 1)]
        return Clock("frames", self.frames, self.updates, now.collects, self._frames_alone())

    def _frames_alone(self) -> bool:
        """Return whether nothing was learned without collecting since the last frame."""
        for i in range(min(self.index, len(self.phases) - 1), -1, -1):
            if self.phases[i].collects and (i < self.index or self.frames_in > 0):
                return True
            if self.phases[i].update_hooks and not self.phases[i].collects:
                return False
        return True

    def planned_frames(self) -> int:
        """Return the env frames of the whole training (0 if it collects nothing)."""
        if self.total_frames is not None and self.collects:
            return self.total_frames
        return sum(p.duration_steps or 0 for p in self.phases)

    def progress(self) -> float:
        """Return the progress of training, by frames, or else by updates or cycles."""
        for done, planned in (
            (self.frames, self.planned_frames()),
            (self.updates, sum(p.duration_updates or 0 for p in self.phases)),
            (self.cycles, sum(p.duration_cycles or 0 for p in self.phases)),
        ):
            if planned:
                return min(1.0, done / planned)
        return 0.0

    def get_state(self) -> dict[str, Any]:
        """Return every counter as plain data."""
        return {name: getattr(self, name) for name in _STATE}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from saved counters; the phases themselves come from the config.

        If `total_frames` grew after the phase it stretches was over, that phase and those after it
        run again.
        """
        for name in _STATE:
            setattr(self, name, state[name])
        grew = self.total_frames is not None and self.frames < self.total_frames
        if grew and 0 <= self.extended < self.index:
            self._enter(self.extended)


_STATE = (
    "index", "stage", "owed", "started", "frames_in", "updates_in", "cycles_in",
    "frames", "updates", "cycles",
)  # fmt: skip


def _last_with_steps(phases: Sequence[Phase]) -> int:
    """Return the number of the last phase measured in frames: `total_frames` stretches it."""
    found = [i for i, p in enumerate(phases) if p.duration_steps is not None]
    return found[-1] if found else -1
