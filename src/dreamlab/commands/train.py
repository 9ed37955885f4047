"""`dreamlab train`: start a run, or resume the one in run.dir."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from dreamlab.commands.arguments import cfg, overrides, trust_code, verb
from dreamlab.config_files import experiments
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.text import print

WIDE = 130
"""Terminal width from which environments are not cropped."""


@verb(
    "train",
    "dreamlab train                                  # lists the experiments",
    "dreamlab train ppo_cartpole seed=1 run.dir=experiments/first",
    "dreamlab train dqn_cartpole seed=1,2,3 training.total_frames=20_000",
    "dreamlab train my_experiment.yaml env=Acrobot-v1 --cfg job",
    "dreamlab train ppo_cartpole launcher.name=slurm limits.gpus=1 limits.time_min=240",
)
@overrides
@cfg
@trust_code
def command(overrides: tuple[str, ...], cfg: bool, trust_code: bool) -> int:
    """Train, or resume the run in run.dir.

    The configuration is an experiment plus overrides. A run gets its own directory in experiments/
    unless run.dir is set; the same command with the same run.dir resumes it. `seed=1,2,3` trains
    the seeds one after another. Without arguments, lists the experiments. With
    launcher.name=slurm or ray it is submitted to a cluster, with the resources in `limits`. Lengths
    are in env frames, including action repeat.
    """
    if not overrides and not cfg:
        return _list()
    from dreamlab import training
    from dreamlab.commands import several
    from dreamlab.commands.submit import for_limits, place_of, submit
    from dreamlab.config import compose, load_config, to_yaml
    from dreamlab.interop import strangers

    place, own = place_of(overrides)
    strange_file = strangers.check_files(own, trust_code)
    if place is not None and trust_code:
        raise ConfigError("--trust-code: code from a hub is trained on this machine only")
    for words in each_seed(own):
        words = for_limits(place.limits, words) if place else words  # noqa: PLW2901
        config = load_config(compose(words))
        if cfg:
            print(to_yaml(config), end="")
            continue
        if place is not None:
            if code := submit(place, words, config):
                return code
            continue
        strange_run = bool(config.run.dir) and strangers.is_strange(Path(config.run.dir or ""))
        if trust_code and not (strange_file or strange_run):
            raise ConfigError("--trust-code has no effect: no file here is from a hub. Remove it")
        trusted = trust_code and strange_run
        flags = ["--trust-code"] if trust_code else []
        with several.processes_of(config, ["train", *words, *flags]) as here:
            if here.mine:
                done = training.train(here.config, trust_code=trusted)
                here.ended(training.exit_code(*done))
        if here.code:
            return here.code
    return 0


def _list() -> int:
    """Print a table of the experiments, cropped to the terminal's width."""
    rows = [("experiment", "environment", ""), *((e.name, e.env, e.about) for e in experiments())]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    narrow = widths[0], widths[1] if width is None or width > WIDE else 24
    for name, env, about in rows:
        line = f"{name:{narrow[0]}s}  {_cropped(env, narrow[1]):{narrow[1]}s}  {about}"
        print(_cropped(line.rstrip(), width))
    return 0


def _cropped(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else f"{text[: width - 1]}…"


def each_seed(words: list[str]) -> list[list[str]]:
    """Return one list of overrides per seed, each with its own folder."""
    at = next((i for i, a in enumerate(words) if a.startswith("seed=") and "," in a), None)
    if at is None:
        return [words]
    folder = next((a.split("=", 1)[1] for a in words if a.startswith("run.dir=")), None)
    rest = [a for i, a in enumerate(words) if i != at and not a.startswith("run.dir=")]
    out: list[list[str]] = []
    for seed in words[at].split("=", 1)[1].split(","):
        if not re.fullmatch(r"-?[0-9_]+", seed.strip()):
            raise LabError(f"seed: expected int, got {seed!r}")
        extra = [f"run.dir={folder}/seed_{seed}"] if folder else []
        out.append([*rest, f"seed={seed}", *extra])
    return out
