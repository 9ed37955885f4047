"""A sweep: many runs that differ in a few options, described by one YAML file."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.limits import Items, Natural, PositiveInt, Seed
from dreamlab.core.limits import Range as Bounds
from dreamlab.core.names import check_word
from dreamlab.core.words import number
from dreamlab.sweeps.job import Job, Outcome, Status, text_of
from dreamlab.sweeps.job_pool import JobPool, work
from dreamlab.sweeps.launch.options import LauncherConfig, Limits, check_together
from dreamlab.sweeps.progress import SweepProgress, result

MOST_JOBS = 100_000
RANGES = ("uniform", "loguniform", "int")
ELSEWHERE_S = 2.0  # how often to look at a job that another process has in hand


# -- the space of a search ------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """One of several values, each as likely."""

    values: tuple[Any, ...]

    def draw(self, rng: random.Random) -> Any:
        """Return a random value."""
        return rng.choice(self.values)


@dataclass(frozen=True)
class Range:
    """A number between two, both included."""

    kind: Literal["uniform", "loguniform", "int"]
    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        """Return a random number, of as many digits as a command line can stand."""
        if self.kind == "int":
            return rng.randint(int(self.low), int(self.high))
        if self.kind == "uniform":
            return short(rng.uniform(self.low, self.high))
        return short(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))


def short(value: float) -> float:
    """Return a number with six digits."""
    return float(f"{value:.6g}")


def distribution(key: str, node: Any) -> Choice | Range:
    """Return what `[a, b]`, `{choice: [a, b]}` or `{uniform: [low, high]}` means."""
    where = f"parameters.{key}"
    if isinstance(node, list):
        node = {"choice": node}
    if not isinstance(node, Mapping) or len(node) != 1:
        raise ConfigError(f"{where}: expected a list, or one of choice, {', '.join(RANGES)}")
    kind, values = next(iter(node.items()))
    if kind not in ("choice", *RANGES):
        raise ConfigError(unknown("distribution", str(kind), ("choice", *RANGES), where))
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}.{kind}: expected a list, got {values!r}")
    if kind == "choice":
        return Choice(tuple(values))
    low, high = _bounds(values, f"{where}.{kind}")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"{where}.int: expected integers, got {values!r}")
    if kind == "loguniform" and low <= 0:
        raise ConfigError(f"{where}.loguniform: must start above 0, got {low}")
    return Range(kind, low, high)


def _bounds(values: list[Any], where: str) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in values)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: expected [low, high], got {values!r}") from None
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"{where}: must be finite, got {values!r}")
    if not low < high:
        raise ConfigError(f"{where}: {low} is not below {high}")
    return low, high


# -- the file -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TuneConfig:
    """How `dreamlab tune` searches."""

    trials: PositiveInt = 20
    """Total trials of the study, including pruned and failed ones."""
    metric: str = "eval/return"
    """The objective: the last value of this metric, averaged over seeds."""
    direction: Literal["maximize", "minimize"] = "maximize"
    pruner: Literal["median", "hyperband", "none"] = "median"
    prune_on: str = "episode/return"
    """The intermediate metric for pruning; only of the first seed."""
    report_every_frames: PositiveInt = 5_000
    """Pruning interval, in env frames."""
    warmup_frames: Natural = 0
    """No run is pruned before this many env frames."""
    startup_trials: Natural = 5
    """Startup trials: without pruning, and random for TPE."""
    seed: Seed = 0
    storage: str | None = None
    """RDB URL of a shared Optuna storage; None: SQLite in the study's folder."""


@dataclass(frozen=True)
class SweepConfig:
    """A sweep's file; `experiment` and `overrides` are the same for all of its jobs."""

    name: str = ""
    """Default: the name of the file."""
    dir: str | None = None
    """Folder of the sweep; None: `experiments/sweep_NAME`, `experiments/tune_NAME`."""
    method: Literal["grid", "random", "listed"] = "grid"
    experiment: str = ""
    overrides: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    """Option: its values (grid) or their distribution (random, tune)."""
    jobs: tuple[dict[str, Any], ...] = ()
    """For `listed`: the options of every job."""
    samples: Annotated[int, Bounds(1, MOST_JOBS)] = 10
    """For `random`: number of samples."""
    sample_seed: Seed = 0
    """For `random`: seed of the sampled values."""
    seeds: Annotated[tuple[Seed, ...], Items()] = (0,)
    parallel_jobs: Annotated[int, Bounds(1, MOST_JOBS)] = 1
    limits: Limits = field(default_factory=Limits)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)

    def __post_init__(self) -> None:
        if self.name:
            check_word(self.name, "name")
        check_together(self.launcher, self.limits)
        for override in self.overrides:
            _check_own(override.partition("=")[0], override, "overrides")
        for point in (self.parameters, *self.jobs):
            for key in point:
                _check_own("" if key == "seed" else key, key, "parameters")
            if "seed" in point and self.seeds != (0,):
                raise ConfigError("seeds: given twice, as `seeds` and as the option `seed`")

    def base(self) -> tuple[str, ...]:
        """Return the overrides that all jobs share."""
        chosen = (f"+experiment={self.experiment}",) if self.experiment else ()
        return (*chosen, *self.overrides)

    def folder(self, kind: str) -> Path:
        """Return where its runs, logs and locks are."""
        return Path(self.dir or f"experiments/{kind}_{self.name}").resolve()


def _check_own(key: str, text: str, where: str) -> None:
    """Raise on an option that a sweep sets by itself, so that it would have no effect."""
    if (name := key.lstrip("+~")) == "seed":
        raise ConfigError(
            f"{where}: {text!r} has no effect: set the seeds of a sweep with `seeds: [...]`"
        )
    if name == "run.dir":
        raise ConfigError(f"{where}: {text!r} has no effect: every job has a folder within `dir`")


def points(config: SweepConfig) -> list[dict[str, Any]]:
    """Return the options of every job, without its seed."""
    if config.method == "listed":
        if not config.jobs:
            raise ConfigError("jobs: a listed sweep needs a list of options")
        return [dict(j) for j in config.jobs]
    if config.method == "grid":
        return _grid(config.parameters)
    space = {k: distribution(k, v) for k, v in config.parameters.items()}
    return [
        {k: d.draw(random.Random(f"{config.sample_seed}:{i}:{k}")) for k, d in space.items()}
        for i in range(config.samples)
    ]


def _grid(parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    for key, values in parameters.items():
        if not isinstance(values, list) or not values:
            hint = "; for a distribution set method: random" if isinstance(values, dict) else ""
            raise ConfigError(f"parameters.{key}: a grid needs a list of values{hint}")
    if (num := math.prod(len(values) for values in parameters.values())) > MOST_JOBS:
        raise ConfigError(
            f"parameters: {num:,} combinations, but at most {MOST_JOBS:,} are allowed"
        )
    combinations = itertools.product(*parameters.values())
    return [dict(zip(parameters, c, strict=True)) for c in combinations]


def make_job(config: SweepConfig, folder: Path, point: Mapping[str, Any], seed: int) -> Job:
    """Return the job of these options and this seed, unless the options have a seed themselves."""
    options = {k: v for k, v in point.items() if k != "seed"} | {"seed": point.get("seed", seed)}
    own = [f"{k}={text_of(v)}" for k, v in options.items()]
    return Job(folder, (*config.base(), *own), options)


def make_jobs(config: SweepConfig, folder: Path) -> list[Job]:
    """Return every job of a sweep, each once, all seeds of the same options together."""
    jobs = [make_job(config, folder, p, s) for p in points(config) for s in config.seeds]
    return list({job.name: job for job in jobs}.values())


def corners(config: SweepConfig) -> list[dict[str, Any]]:
    """Return points of a search that together have every choice, and both ends of every range."""
    ends: dict[str, Sequence[Any]] = {}
    for key, node in config.parameters.items():
        space = distribution(key, node)
        cast = int if isinstance(space, Range) and space.kind == "int" else short
        is_choice = isinstance(space, Choice)
        ends[key] = space.values if is_choice else [cast(space.low), cast(space.high)]
    rows = max(map(len, ends.values()), default=1)
    return [{k: values[i % len(values)] for k, values in ends.items()} for i in range(rows)]


def telling(jobs: Sequence[Job]) -> list[Job]:
    """Return jobs that together have every value, and of numbers the least and the greatest.

    The limits of a number are a range: what lies between two that are allowed is allowed.
    """
    columns: dict[str, dict[str, Any]] = {}
    for job in jobs:
        for key, value in job.parameters.items():
            columns.setdefault(key, {})[text_of(value)] = value
    left = {(k, text_of(v)) for k, seen in columns.items() for v in _extremes([*seen.values()])}
    out: list[Job] = []
    for job in jobs:
        own = {(k, text_of(v)) for k, v in job.parameters.items()}
        if own & left or not out:
            out.append(job)
            left -= own
    return out


def _extremes(values: Sequence[Any]) -> list[Any]:
    """Return the least and the greatest number of each type, and all that are no numbers."""
    numbers = [v for v in values if type(v) in (int, float) and math.isfinite(v)]
    kinds = ([v for v in numbers if type(v) is kind] for kind in (int, float))
    ends = [end(kind) for kind in kinds if kind for end in (min, max)]
    return [*(v for v in values if type(v) not in (int, float) or not math.isfinite(v)), *ends]


# -- carrying it out ------------------------------------------------------------------------------


class Sweep:
    """Runs the unfinished jobs; their files alone say which have ended."""

    def __init__(
        self, jobs: Sequence[Job], pool: JobPool, view: SweepProgress, retry_failed: bool
    ) -> None:
        self.jobs, self.pool, self.view = list(jobs), pool, view
        self.states: dict[str, Status] = {j.name: j.status() for j in self.jobs}
        again = ("waiting", "interrupted", "failed") if retry_failed else ("waiting", "interrupted")
        self.left = [j for j in self.jobs if self.states[j.name] in again]
        self.elsewhere = [j for j in self.jobs if self.states[j.name] == "running"]
        self.looked = 0.0
        for job in self.jobs:
            if self.states[job.name] == "finished":
                view.ended(job)

    def run(self) -> int:
        """Run until nothing is left or the user stops it; return an exit code."""
        work(self.pool, self.view, self._tick)
        if self.pool.stopping:
            return 130
        return 0 if set(self.states.values()) <= {"finished"} else 1

    def _tick(self) -> bool:
        """Start and reap jobs; return whether there is more to do."""
        for job, outcome in self.pool.poll():
            self._ended(job, outcome)
        if not self.pool.stopping:
            self._look_elsewhere()
            self._start()
        self.view.show(self.states, [*self.pool.jobs, *self.elsewhere], len(self.left))
        coming = [] if self.pool.stopping else [*self.left, *self.elsewhere]
        return bool(self.pool.jobs or coming)

    def _start(self) -> None:
        orphans = [j for j in self.elsewhere if not j.owner_lock.held()]
        while self.left and len(self.pool.jobs) + len(orphans) < self.pool.size:
            job = self.left.pop(0)
            if self.pool.start(job):
                self.states[job.name] = "running"
                self.view.say(self._line("start", job))
            else:  # another sweep has it in hand, or has just finished it
                self.elsewhere.append(job)

    def _look_elsewhere(self) -> None:
        if time.monotonic() - self.looked < ELSEWHERE_S:
            return
        self.looked = time.monotonic()
        for job in list(self.elsewhere):
            status = self.states[job.name] = job.status()
            if status == "running":
                continue
            self.elsewhere.remove(job)
            if status in ("waiting", "interrupted"):
                self.left.append(job)

    def _ended(self, job: Job, outcome: Outcome) -> None:
        if outcome == "taken":
            self.elsewhere.append(job)
            return
        self.states[job.name] = outcome
        if outcome == "finished":
            self.view.ended(job)
        self.view.say(f"{self._line(outcome, job)}  return {number(result(job))}")

    def _line(self, word: str, job: Job) -> str:
        return f"{word:11s} {job.name} ({self.jobs.index(job) + 1}/{len(self.jobs)})  {job.label}"
