"""Train from Python, and a handle on what was trained."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import yaml

from dreamlab import training
from dreamlab.api.agent import Agent, load
from dreamlab.api.options import plain, to_words
from dreamlab.config import LabConfig, compose, load_config
from dreamlab.config_files import choices
from dreamlab.core.config import convert
from dreamlab.core.errors import ConfigError, LabError, require
from dreamlab.core.limits import PositiveInt
from dreamlab.engine.evaluator import EvalConfig, EvalResult
from dreamlab.interop import strangers
from dreamlab.results.learning_curve import draw_metrics, save_figure
from dreamlab.runs.find import is_run
from dreamlab.runs.readers import read_manifest
from dreamlab.runs.run import Run as RunFolder
from dreamlab.runs.run_row import live_status, read_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure
    from pandas import DataFrame


class Run:
    """A run: its folder, its configuration, its metrics, and the agent that was trained in it.

    Everything is read from the folder when it is requested, so a run that another process trains
    can be looked at.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        """Where the run is."""
        if not is_run(self.folder):
            raise LabError(f"{self.folder} is not a run directory: it has no manifest.json")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, status={self.status!r})"

    @property
    def status(self) -> str:
        """`created`, `running`, `finished`, `interrupted`, `failed`, `imported`, or `broken`."""
        return live_status(read_row(self.folder)[0], self.folder, time.time())

    @property
    def config(self) -> LabConfig:
        """Every option of the run, defaults included."""
        return strangers.read_config(self.folder, quiet=True)

    @property
    def manifest(self) -> dict[str, Any]:
        """Who ran what, where and from which code, and what came of it."""
        return read_manifest(self.folder)

    @property
    def tags(self) -> list[str]:
        """The run's tags."""
        return RunFolder(self.folder).tags()

    def tag(self, *add: str, remove: Sequence[str] = ()) -> list[str]:
        """Add tags and remove others; return those the run has then."""
        return RunFolder(self.folder).tag(add, remove)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the records of metrics.jsonl, oldest first."""
        return RunFolder(self.folder).metrics()

    def frame(self) -> DataFrame:
        """Return the metrics as a pandas DataFrame, one row for each record."""
        return require("pandas", "data").DataFrame(self.metrics())

    def plot(self, *metrics: str, path: str | Path | None = None) -> Figure:
        """Return a figure of metrics over the run, by default its returns; save it at `path`."""
        title = str(self.manifest.get("name", self.folder.name))
        figure = draw_metrics(self.metrics(), title, metrics)
        if figure is None:
            raise LabError(f"{self.folder}: there is nothing to plot yet")
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    def agent(self, checkpoint: str = "latest", trust_code: bool = False) -> Agent:
        """Return the agent of a checkpoint: `latest`, `best`, or a name in checkpoints/."""
        return load(self.folder, checkpoint, trust_code=trust_code)

    def evaluate(
        self, episodes: int = EvalConfig.episodes, *, checkpoint: str = "latest", **options: Any
    ) -> EvalResult:
        """Measure a checkpoint in new episodes; options are those of `Agent.evaluate`."""
        return self.agent(checkpoint).evaluate(episodes, **options)

    def resume(self, total_frames: int | None = None, *, checkpoint: str = "latest") -> Run:
        """Resume the run, up to `total_frames` if given; return it."""
        return resume(self.folder, total_frames, checkpoint=checkpoint)


def train(what: str | Path | Mapping[str, Any] | Run, *overrides: str, **options: Any) -> Run:
    """Train and return the run; `run.status` says how it ended.

    `what` is an experiment's name, a YAML file, a dictionary as in such a file, or a run to resume.
    Options are those of the command line: as words (`"env.num_envs=4"`), or as keyword arguments by
    a section (`env={"num_envs": 4}`), a dotted key (`**{"env.num_envs": 4}`), or a name that only
    one option has (`lr=1e-3`). Ctrl-C, or interrupting the kernel, saves a checkpoint and returns
    an interrupted run. `trust_code=True` lets a policy or file from a hub run code of its own.
    """
    trust_code = bool(options.pop("trust_code", False))
    if _is_run(what):
        return _resume_by_train(what, overrides, options, trust_code)
    with _typed(what) as first:
        words = to_words([first, *overrides], options)
        strange_file = strangers.check_files(words, trust_code)
        config = load_config(compose(words))
    strange_run = config.run.dir is not None and strangers.is_strange(Path(config.run.dir))
    if trust_code and not (strange_file or strange_run):
        raise ConfigError("trust_code=True has no effect: no file here is from a hub. Remove it")
    command = None if isinstance(what, Mapping) else ["dreamlab", "train", *words]
    run, _ = training.train(config, trust_code=trust_code and strange_run, command=command)
    return Run(run.folder)


def resume(
    folder: str | Path | Run,
    total_frames: int | None = None,
    *,
    checkpoint: str = "latest",
    trust_code: bool = False,
) -> Run:
    """Resume a run by its own configuration, up to `total_frames` if given; return it.

    From an older checkpoint training is repeated from there; later ones are set aside.
    """
    path = folder.folder if isinstance(folder, Run) else Path(folder)
    frames = convert(total_frames, PositiveInt | None, "total_frames")
    training.resume(path, frames, trust_code=trust_code, checkpoint=checkpoint)
    return Run(path)


def _is_run(what: str | Path | Mapping[str, Any] | Run) -> TypeGuard[str | Path | Run]:
    """Tell whether a run is meant; an experiment of ours goes before a folder of its name."""
    if isinstance(what, Mapping) or what in choices("experiment"):
        return False
    return isinstance(what, Run) or is_run(Path(what))


def _resume_by_train(
    what: str | Path | Run,
    overrides: Sequence[str],
    options: Mapping[str, Any],
    trust_code: bool,
) -> Run:
    """Resume the run that `train` was given; only its length may change."""
    length = {"total_frames", "training.total_frames"}
    if wrong := [*overrides, *(k for k in options if k not in length)]:
        raise ConfigError(
            f"{wrong[0]}: only total_frames may change when a run is resumed; "
            "for other options start a new run"
        )
    frames = next(iter(options.values()), None)
    return resume(what, frames, trust_code=trust_code)


@contextmanager
def _typed(what: str | Path | Mapping[str, Any] | Run) -> Iterator[str]:
    """Give the word that stands for an experiment on a command line."""
    if not isinstance(what, Mapping):
        yield str(what)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "given.yaml"
        text = yaml.safe_dump(plain(what), sort_keys=False)
        path.write_text(f"# @package _global_\n{text}", encoding="utf-8")
        yield str(path)
