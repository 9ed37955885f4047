"""Takes trials of a study in hand, one at a time, however many processes work on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamlab.core.errors import require
from dreamlab.sweeps.job import Lock, text_of
from dreamlab.sweeps.sweep import Choice, Range, SweepConfig, distribution, short


def _optuna() -> Any:
    return require("optuna", "tune")


@dataclass(frozen=True)
class Taken:
    """A trial of Optuna's in hand: its options, and the lock that says so."""

    trial: Any
    point: dict[str, Any]
    owner: Lock


class Asker:
    """Asks a study for trials.

    Asking and counting happen under one lock, and each process holds a lock on every trial in
    hand: a running trial without it was left by a dead process, and is tried again.
    """

    def __init__(self, config: SweepConfig, folder: Path, study: Any) -> None:
        self.tune, self.folder, self.study = config.tune, folder, study
        self.space = {k: distribution(k, v) for k, v in config.parameters.items()}
        self.states: Any = _optuna().trial.TrialState
        self.lock = Lock(folder / "ask.lock")

    def ask(self, most: int | None = None) -> Taken | None:
        """Take one more trial in hand; None if the study has as many as it may."""
        self.lock.take(wait=True)
        try:
            self._revive()
            trials = self.study.get_trials(deepcopy=False)
            if most is not None and len(begun(trials)) >= most:
                return None
            return self._take(len(trials))
        finally:
            self.lock.release()

    def _take(self, count: int) -> Taken:
        # a function of how many there are, so that a study that was killed does not repeat itself
        self.study.sampler = _optuna().samplers.TPESampler(
            seed=self.tune.seed + count, n_startup_trials=self.tune.startup_trials
        )
        trial = self.study.ask()
        owner = Lock(self.folder / "trials" / f"{trial.number}.lock")
        assert owner.take(), trial.number
        return Taken(trial, {k: suggest(trial, k, d) for k, d in self.space.items()}, owner)

    def _revive(self) -> None:
        """Fail the trials that a dead process left running, and put their options back."""
        for left in self.study.get_trials(deepcopy=False, states=(self.states.RUNNING,)):
            if not Lock(self.folder / "trials" / f"{left.number}.lock").held():
                put_back(self.study, left)
                self.study.tell(left.number, state=self.states.FAIL)


def suggest(trial: Any, key: str, space: Choice | Range) -> Any:
    """Return the trial's value of an option."""
    if isinstance(space, Choice):  # a storage knows texts and numbers; a value may be a list
        texts = [text_of(v) for v in space.values]
        return space.values[texts.index(trial.suggest_categorical(key, texts))]
    if space.kind == "int":
        return trial.suggest_int(key, int(space.low), int(space.high))
    return short(trial.suggest_float(key, space.low, space.high, log=space.kind == "loguniform"))


def put_back(study: Any, trial: Any) -> None:
    """Queue a trial's options once more; its jobs have the same folders, and are resumed."""
    again = {t.user_attrs.get("retry_of") for t in study.get_trials(deepcopy=False)}
    if trial.number not in again:
        study.enqueue_trial(trial.params, user_attrs={"retry_of": trial.number})


def valid(trials: Sequence[Any]) -> list[Any]:
    """Return the trials that were not replaced by another try at the same options."""
    again = {t.user_attrs.get("retry_of") for t in trials}
    return [t for t in trials if t.number not in again]


def begun(trials: Sequence[Any]) -> list[Any]:
    """Return those of them that do not wait in the queue."""
    return [t for t in valid(trials) if t.state.name != "WAITING"]
