"""A search for good options with Optuna: every trial is a job, its metrics decide its fate."""

from __future__ import annotations

import math
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dreamlab.core.errors import ConfigError, LabError, require
from dreamlab.core.files import write_atomic, write_json
from dreamlab.core.readers import Tail
from dreamlab.core.words import number
from dreamlab.runs.readers import is_metrics
from dreamlab.runs.run import Run
from dreamlab.sweeps.asking import Asker, begun, put_back, suggest, valid
from dreamlab.sweeps.job import Job, Lock, Outcome, returns, text_of
from dreamlab.sweeps.job_pool import JobPool, work
from dreamlab.sweeps.progress import SweepProgress
from dreamlab.sweeps.sweep import SweepConfig, TuneConfig, distribution, make_job

WORDS = {"RUNNING": "running", "COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
LOOK_S = 0.5  # how often the metrics of a running trial are read
COUNT_S = 2.0  # how often the trials of all processes are counted, to be shown


def _optuna() -> Any:
    return require("optuna", "tune")


def study_file(folder: Path) -> Path:
    """Return where a study is kept that names no storage."""
    return folder / "study.db"


def open_study(config: SweepConfig, folder: Path, total_frames: int) -> Any:
    """Return the study in its storage, made new or found."""
    if not config.parameters:
        raise ConfigError("parameters: the search space is empty")
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    url = config.tune.storage or f"sqlite:///{study_file(folder)}"
    # two processes that create the tables at once would trip over each other
    lock = Lock(folder / "ask.lock")
    lock.take(wait=True)
    try:
        return optuna.create_study(
            study_name=config.name,
            storage=url,
            direction=config.tune.direction,
            pruner=make_pruner(config.tune, total_frames),
            load_if_exists=True,
        )
    finally:
        lock.release()


def make_pruner(tune: TuneConfig, total_frames: int) -> Any:
    """Return the pruner; its steps are multiples of `report_every_frames`."""
    pruners, every = _optuna().pruners, tune.report_every_frames
    if tune.pruner == "hyperband":
        if not total_frames:
            raise ConfigError("tune.pruner: hyperband needs runs with training.total_frames")
        first = max(1, tune.warmup_frames // every)
        return pruners.HyperbandPruner(
            min_resource=first, max_resource=max(first, total_frames // every)
        )
    if tune.pruner == "median":
        return pruners.MedianPruner(
            n_startup_trials=tune.startup_trials, n_warmup_steps=tune.warmup_frames // every
        )
    return pruners.NopPruner()


@dataclass
class Trial:
    """A trial in hand: its jobs, one per seed, are run in turn."""

    trial: Any
    jobs: list[Job]
    owner: Lock
    values: list[float] = field(default_factory=list)
    step: int = 0
    pruned: bool = False
    looked: float = 0.0
    metrics: Tail = field(init=False)
    """Intermediate values of the first run."""

    def __post_init__(self) -> None:
        self.metrics = Tail(self.job.run_folder / "metrics.jsonl", is_metrics)

    @property
    def job(self) -> Job:
        """The job whose turn it is."""
        return self.jobs[len(self.values)]


class Tuner:
    """Asks the study for trials, runs and prunes them, and reports their values.

    Several may work on one study, see `Asker`.
    """

    def __init__(
        self, config: SweepConfig, folder: Path, study: Any, work: tuple[JobPool, SweepProgress]
    ):
        self.config, self.folder, self.study = config, folder, study
        self.pool, self.view = work
        self.asker = Asker(config, folder, study)
        self.trials: dict[int, Trial] = {}
        self.states: Any = _optuna().trial.TrialState
        self.shown: dict[str, str] = {}
        self.counted = 0.0

    def run(self) -> int:
        """Work until the study has all its trials; return an exit code."""
        work(self.pool, self.view, self._tick)
        return 130 if self.pool.stopping else 0

    def _tick(self) -> bool:
        """Start, watch and end trials; return whether there is more to do."""
        for job, outcome in self.pool.poll():
            self._ended(self._trial_of(job), outcome)
        if self.pool.stopping:
            for live in [t for t in self.trials.values() if t.job not in self.pool.jobs]:
                self._let_go(live)
        else:
            for live in list(self.trials.values()):
                self._advance(live)
            more = True
            while more and len(self.trials) < self.pool.size:
                more = self._ask()
        if time.monotonic() - self.counted > COUNT_S:
            self._count()
        self.view.show(self.shown, self.pool.jobs, self.config.tune.trials - len(self.shown))
        return bool(self.trials)

    def _trial_of(self, job: Job) -> Trial:
        return next(t for t in self.trials.values() if t.job == job)

    # -- asking -----------------------------------------------------------------------------------

    def _ask(self) -> bool:
        """Take one more trial in hand; False if the study has enough."""
        taken = self.asker.ask(self.config.tune.trials)
        if taken is not None:
            jobs = [make_job(self.config, self.folder, taken.point, s) for s in self.config.seeds]
            taken.trial.set_user_attr("jobs", [j.name for j in jobs])
            self.trials[taken.trial.number] = Trial(taken.trial, jobs, taken.owner)
            self.view.say(f"start    trial {taken.trial.number}  {jobs[0].label}")
        self._count()
        return taken is not None

    def _count(self) -> None:
        """Look at the trials of all processes."""
        counted = begun(self.study.get_trials(deepcopy=False))
        self.shown = {str(t.number): WORDS[t.state.name] for t in counted}
        self.counted = time.monotonic()

    # -- running ----------------------------------------------------------------------------------

    def _advance(self, live: Trial) -> None:
        """Start the trial's next job, take over a finished one, or look at the one that runs."""
        job = live.job
        if job in self.pool.jobs:
            self._look(live)
        elif job.manifest_status() == "finished":
            self._ended(live, "finished")
        elif not job.run_lock.held():  # else another process runs it, and we take what it finds
            self.pool.start(job)

    def _look(self, live: Trial) -> None:
        """Report what the run has reached so far, and prune it if the study says so."""
        tune, now = self.config.tune, time.monotonic()
        if live.pruned or live.values or tune.pruner == "none" or now - live.looked < LOOK_S:
            return
        live.looked = now
        for frames, value in returns(live.metrics.read(), tune.prune_on):
            while live.step < frames // tune.report_every_frames and math.isfinite(value):
                live.step += 1
                live.trial.report(value, live.step)
                if live.trial.should_prune():
                    live.pruned = True
                    self.pool.interrupt(live.job)
                    return

    def _ended(self, live: Trial, outcome: Outcome) -> None:
        job = live.job
        if outcome == "finished":
            self.view.ended(job)
            points = returns(Run(job.run_folder).metrics(), self.config.tune.metric)
            if not points:
                self._fail(live, f"the run has no finite {self.config.tune.metric}")
                return
            live.values.append(points[-1][1])
            if len(live.values) == len(live.jobs):
                mean = sum(live.values) / len(live.values)
                self.study.tell(live.trial, mean)
                self._close(live, f"finished trial {live.trial.number}  value {number(mean)}")
        elif outcome == "failed":
            self._fail(live, "\n  ".join(job.record().get("error", [])))
        elif outcome == "interrupted" and live.pruned:
            self._prune(live)
        elif outcome == "interrupted":
            self._let_go(live)

    def _prune(self, live: Trial) -> None:
        job = live.job
        job.write(status="pruned")
        if job.manifest_status():
            run = Run(job.run_folder)
            run.event("pruned", trial=live.trial.number, step=live.step)
            run.update(pruned=True)
        self.study.tell(live.trial, state=self.states.PRUNED)
        frames = live.step * self.config.tune.report_every_frames
        self._close(live, f"pruned   trial {live.trial.number} at {frames:,} frames")

    def _fail(self, live: Trial, error: str) -> None:
        live.trial.set_user_attr("error", error)
        self.study.tell(live.trial, state=self.states.FAIL)
        self._close(live, f"failed   trial {live.trial.number}  {live.job.folder}\n  {error}")

    def _let_go(self, live: Trial) -> None:
        """Give the trial back: the next process on the study resumes its run."""
        put_back(self.study, live.trial)
        self.study.tell(live.trial, state=self.states.FAIL)
        self._close(live, f"stopped  trial {live.trial.number}")

    def _close(self, live: Trial, text: str) -> None:
        live.owner.release()
        del self.trials[live.trial.number]
        self.view.say(text)


# -- results --------------------------------------------------------------------------------------


def is_over(tune: TuneConfig, study: Any) -> bool:
    """Return whether a study has all its trials, none of them still in hand."""
    found = begun(study.get_trials(deepcopy=False))
    return len(found) >= tune.trials and all(t.state.is_finished() for t in found)


def retry_failed(study: Any) -> int:
    """Queue every failed trial once more; return how many."""
    failed = [t for t in valid(study.get_trials(deepcopy=False)) if t.state.name == "FAIL"]
    for trial in failed:
        put_back(study, trial)
    return len(failed)


def best_command(config: SweepConfig, study: Any) -> str:
    """Return the best trial's options as a command, without a folder and a seed."""
    best = study.best_trial
    space = {k: distribution(k, v) for k, v in config.parameters.items()}
    fixed = _optuna().trial.FixedTrial(best.params)
    own = [f"{k}={text_of(suggest(fixed, k, d))}" for k, d in space.items()]
    shared = [o for o in config.base() if o.partition("=")[0] not in config.parameters]
    return shlex.join(["dreamlab", "train", *shared, *own])


def completed(study: Any) -> list[Any]:
    """Return the trials that have a value, oldest first."""
    state = _optuna().trial.TrialState
    return study.get_trials(deepcopy=False, states=(state.COMPLETE,))


def importances(study: Any) -> dict[str, float]:
    """Return how much each option matters, largest first; empty if too little is known."""
    optuna = _optuna()
    values = {t.value for t in completed(study)}
    if len(completed(study)) < 4 or len(values) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def write_results(config: SweepConfig, folder: Path, study: Any) -> list[Path]:
    """Write best.json and the plots; return what was written."""
    if not completed(study):
        raise LabError(f"{folder}: no trial has finished yet")
    best, important = study.best_trial, importances(study)
    path = folder / "best.json"
    write_json(
        path,
        {
            "trial": best.number,
            "value": best.value,
            "parameters": best.params,
            "jobs": best.user_attrs["jobs"],
            "command": best_command(config, study),
            "importance": important,
        },
    )
    written = [path, plot_history(config, folder, study)]
    return [*written, plot_importance(config, folder, important)] if important else written


def plot_history(config: SweepConfig, folder: Path, study: Any) -> Path:
    """Draw every trial's value, the best so far, and what pruned ones had reached."""
    trials = completed(study)
    choose = max if config.tune.direction == "maximize" else min
    numbers, values = [t.number for t in trials], [t.value for t in trials]
    best = [choose(values[: i + 1]) for i in range(len(values))]
    pruned = [t for t in study.get_trials(deepcopy=False) if t.state.name == "PRUNED"]
    figure, axes = _figure()
    axes.plot(numbers, values, "o", label="finished")
    if pruned:
        reached = [t.value for t in pruned]
        label = f"pruned: the last {config.tune.prune_on}"
        axes.plot([t.number for t in pruned], reached, "x", color="0.5", label=label)
    axes.step(numbers, best, where="post", label="best so far")
    axes.set(xlabel="trial", ylabel=config.tune.metric, title=config.name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return _save(figure, folder / "report" / "history.png")


def plot_importance(config: SweepConfig, folder: Path, important: dict[str, float]) -> Path:
    """Draw how much each option matters."""
    figure, axes = _figure()
    bars = axes.barh(list(important)[::-1], list(important.values())[::-1])
    axes.bar_label(bars, fmt="{:.0%}", padding=3)
    axes.margins(x=0.12)
    axes.set(xlabel="importance (PED-ANOVA)", title=config.name)
    return _save(figure, folder / "report" / "importance.png")


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    write_atomic(path, lambda file: figure.savefig(file, format="png"))
    return path
