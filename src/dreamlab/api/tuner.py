"""Search for good options from Python: ask for options, tell their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dreamlab.api.options import plain
from dreamlab.core.errors import LabError, require
from dreamlab.sweeps.asking import Asker, Taken, begun, suggest
from dreamlab.sweeps.job import Job, text_of
from dreamlab.sweeps.sweep import SweepConfig, TuneConfig
from dreamlab.sweeps.tune import completed, importances, open_study

if TYPE_CHECKING:
    from pandas import DataFrame

SPACE = "space"
"""Where a study keeps what it searches."""


@dataclass(frozen=True)
class Trial:
    """Options to try. `train(experiment, **trial.params, run_dir=trial.folder)` tries them."""

    number: int
    params: dict[str, Any]
    folder: Path
    """For its run; the same options have the same folder, so a run that was cut off is resumed."""
    value: float | None = None
    """What it was worth, once it is told."""
    _taken: Taken | None = field(default=None, repr=False, compare=False)


class Tuner:
    """A search with Optuna (TPE) in a folder: found there, it continues where it stopped.

    `space` has the form of a sweep's `parameters`: a list of choices, `{"uniform": [low, high]}`,
    `{"loguniform": [low, high]}` or `{"int": [low, high]}`. Several processes may work on one
    folder. A trial whose process died before it told a value is requested again.
    """

    def __init__(
        self,
        space: Mapping[str, Any],
        folder: str | Path,
        *,
        direction: Literal["maximize", "minimize"] = TuneConfig.direction,
        seed: int = TuneConfig.seed,
        startup_trials: int = TuneConfig.startup_trials,
    ) -> None:
        self.folder = Path(folder).resolve()
        tune = TuneConfig(
            direction=direction, seed=seed, startup_trials=startup_trials, pruner="none"
        )
        self._config = SweepConfig("tune", parameters=plain(space), tune=tune)
        _ = Asker(self._config, self.folder, None)  # a space that cannot be searched leaves no file
        self.study: Any = open_study(self._config, self.folder, 0)
        """Optuna's own study."""
        self._check_same()
        self._asker = Asker(self._config, self.folder, self.study)

    def _check_same(self) -> None:
        """Raise if the folder holds a study of something else."""
        known = self.study.user_attrs.get(SPACE)
        if known is None:
            self.study.set_user_attr(SPACE, self._config.parameters)
        elif known != self._config.parameters:
            raise LabError(f"{self.folder} contains a study with another search space: {known}")
        if (own := self.study.direction.name.lower()) != self._config.tune.direction:
            raise LabError(
                f"{self.folder} contains a study with direction {own}: use another folder"
            )

    def ask(self) -> Trial:
        """Return options to try next."""
        taken = self._asker.ask()
        assert taken is not None
        return self._trial(taken.trial.number, taken.point, None, taken)

    def tell(self, trial: Trial, value: float | None) -> None:
        """Say what a trial was worth; None, or a non-finite number, says that it failed."""
        taken = trial._taken
        if taken is None or taken.owner.file is None:
            raise LabError(f"trial {trial.number} is not pending: it already has a value")
        if value is None or not math.isfinite(value):
            self.study.tell(taken.trial, state=self._asker.states.FAIL)
        else:
            self.study.tell(taken.trial, float(value))
        taken.owner.release()

    def __len__(self) -> int:
        """Return how many trials have started; one that was tried again counts once."""
        return len(begun(self.study.get_trials(deepcopy=False)))

    @property
    def trials(self) -> list[Trial]:
        """The trials that have a value, oldest first."""
        fixed = require("optuna", "tune").trial.FixedTrial
        found: list[Trial] = []
        for t in completed(self.study):
            point = {k: suggest(fixed(t.params), k, d) for k, d in self._asker.space.items()}
            found.append(self._trial(t.number, point, float(t.value)))
        return found

    @property
    def best(self) -> Trial:
        """The trial with the best value."""
        if not (found := self.trials):
            raise LabError(f"{self.folder}: no trial has a value yet")
        choose = max if self._config.tune.direction == "maximize" else min
        return choose(found, key=lambda t: t.value or 0.0)

    def importances(self) -> dict[str, float]:
        """Return how much each option matters (PED-ANOVA); empty with fewer than four values."""
        return importances(self.study)

    def frame(self) -> DataFrame:
        """Return the trials that have a value as a pandas DataFrame."""
        rows = [{"trial": t.number, **t.params, "value": t.value} for t in self.trials]
        return require("pandas", "data").DataFrame(rows)

    def _trial(
        self, number: int, point: dict[str, Any], value: float | None, taken: Taken | None = None
    ) -> Trial:
        job = Job(self.folder, tuple(f"{k}={text_of(v)}" for k, v in point.items()), point)
        return Trial(number, point, job.run_folder, value, taken)
