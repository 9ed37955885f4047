"""The rerun that `dreamlab verify` compares with, in a clean process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamlab import build, training
from dreamlab.config import LabConfig, dump, load_config, read_yaml, to_yaml
from dreamlab.core import world
from dreamlab.core.clock import moment_of
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.files import write_text
from dreamlab.core.text import print
from dreamlab.engine import processes
from dreamlab.engine.checkpoint import Checkpoints
from dreamlab.engine.observer import Observer
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.terminal import Terminal
from dreamlab.runs import verify as verifying
from dreamlab.runs.legs import Moment, former_legs
from dreamlab.runs.locks import is_writing
from dreamlab.runs.run import FollowedRun, Run

LAUNCH = (
    "-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost", "--nproc-per-node",
)  # fmt: skip
"""Starts as many processes as the run had."""


def prepare(config: LabConfig, second: Path, overrides: Sequence[str]) -> verifying.Rows:
    """Write the configuration of the rerun; return the options that it changes."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        node = OmegaConf.create(dump(config))
        merged = OmegaConf.merge(node, OmegaConf.from_dotlist(list(overrides)))
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"verify: {' '.join(str(error).split())}") from None
    plain: Any = OmegaConf.to_container(merged)
    changed = load_config(plain, stored=not any(o.startswith("distributed") for o in overrides))
    second.mkdir()
    write_text(second / "config.yaml", to_yaml(_quiet(changed, second)))
    return verifying.changes(dump(config), dump(changed))


def _quiet(config: LabConfig, folder: Path) -> LabConfig:
    """Return the same training without evaluation and logging."""
    log = replace(
        config.log, terminal="off", tensorboard=False, wandb=False, chain=True, norms=False
    )
    never: dict[str, Any] = {"every_frames": 0, "every_updates": 0}
    return replace(
        config,
        run=replace(config.run, dir=str(folder)),
        log=log,
        eval=replace(config.eval, **never, episodes=1, num_envs=1, video=False),
        report=replace(config.report, **never),
        checkpoint=replace(config.checkpoint, **never, every_s=0.0),
        watch=replace(config.watch, on_nan="off", check_every_update=False, command=None),
    )


def find_checkpoint(run: Run, config: LabConfig, which: str) -> Path:
    """Return the folder of a checkpoint to start from."""
    if is_writing(run.folder):
        raise LabError(
            f"{run.folder} is being trained: remove --from, or wait until it has finished"
        )
    checkpoints = Checkpoints(run.folder / "checkpoints", config.checkpoint, print)
    path = checkpoints.named(which) or checkpoints.folder / which
    if path.name not in checkpoints.names():
        raise LabError(f"{run.folder}: there is no checkpoint {which!r}; {checkpoints.names()}")
    return path


def clock_of(checkpoint: Path | None) -> int:
    """Return the clock of a checkpoint; 0 at the start of a run."""
    return int(checkpoint.name.split("_")[0]) if checkpoint is not None else 0


def copy_checkpoint(run: Run, path: Path, second: Path) -> None:
    """Copy a checkpoint and the files it needs."""
    shutil.copytree(path, second / "checkpoints" / path.name)
    if (run.folder / "buffers").is_dir():
        shutil.copytree(run.folder / "buffers", second / "buffers")
    for name in ("chain.jsonl", "metrics.jsonl"):
        shutil.copy(run.folder / name, second / name)


def links_ahead(run: Run, begin: int, frames: int) -> list[int]:
    """Return the clocks of the links to compare: all, or up to the first after `frames`."""
    links = verifying.whole_part(verifying.read_chain(run.folder))
    ahead = [at for link in links if (at := moment_of(link)) > begin]
    if not ahead:
        raise LabError(f"{run.folder}: nothing was recorded after {begin:,} on its clock")
    short = sum(f < begin + frames for f in ahead) if frames else len(ahead)
    return ahead[: short + 1]


def run_again(run: Run, second: Path, begin: int, links: int) -> None:
    """Train the prepared folder for a number of links after `begin`.

    A run whose length was changed is repeated leg by leg, each in a process of its own: it ends
    and resumes where the run did.
    """
    config = load_config(read_yaml(second / "config.yaml"), stored=True)
    processes.check_devices(config.device, config.devices, config.processes)
    left = links
    for leg in former_legs(run.folder):
        if leg.end.count < begin:
            continue
        _write_length(config, second, leg.total_frames)
        _run_leg(config.processes, second, left, None if leg.finished else leg.end)
        chain = verifying.read_chain(second) if (second / "chain.jsonl").exists() else []
        left = links - sum(moment_of(link) > begin for link in chain)
        if left <= 0:
            return
    _write_length(config, second, config.training.total_frames)
    _run_leg(config.processes, second, left)


def _write_length(config: LabConfig, second: Path, total_frames: int | None) -> None:
    training = replace(config.training, total_frames=total_frames)
    write_text(second / "config.yaml", to_yaml(replace(config, training=training)))


def _run_leg(number: int, second: Path, links: int, end: Moment | None = None) -> None:
    """Train in a process of its own for a number of links, or up to a moment."""
    agent = [*LAUNCH, str(number)] if number > 1 else []
    stops = [links] if end is None else [links, end.count, end.updates or 0]
    words = [str(second), *map(str, stops)]
    command = [sys.executable, *agent, "-m", "dreamlab.commands.again", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        text = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise LabError(f"the rerun failed:\n{text}")


class StopAfterLinks(Observer):
    """Stop a run after a number of links."""

    def __init__(self, loop: Orchestrator, links: int) -> None:
        self.loop, self.left = loop, links

    def flushed(self, record: dict[str, float]) -> None:
        self.left -= 1
        if self.left == 0:
            self.loop.stop()


class StopAt(Observer):
    """Stop a run at a moment, or at once if it has passed it."""

    def __init__(self, loop: Orchestrator, count: int, updates: int) -> None:
        self.loop, self.end = loop, (count, updates)

    def started(self, loop: Orchestrator) -> None:
        self._look()

    def after(self, action: str) -> None:
        self._look()

    def _look(self) -> None:
        if (self.loop.scheduler.clock().count, self.loop.counters.updates) >= self.end:
            self.loop.stop()


def again(folder: Path, links: int, end: Sequence[int] = ()) -> int:
    """Train a prepared folder for a number of links, or up to an `end`: clock and updates.

    The entry point of the clean process.
    """
    config = load_config(read_yaml(folder / "config.yaml"), stored=True)
    options = config.distributed
    with processes.together(config.processes, config.device, options.timeout_s):
        saved = Run(folder).saved
        run = Run(folder) if world.is_main() else FollowedRun(folder, saved)
        loop = build.build(config, run, Terminal("off", config.name))
        training.begin(training.Opened(run, config, True, lambda: None), loop)
        loop.observers.add(StopAfterLinks(loop, links))
        if end:
            loop.observers.add(StopAt(loop, *end))
        loop.run()
    return 0
