"""The verb by which a run is trusted: part of it is run again, and everything compared."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dreamlab import build
from dreamlab.commands.arguments import Parser, natural
from dreamlab.commands.printing import json_text
from dreamlab.config import LabConfig, dump, load_config, read_yaml, to_yaml
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.files import disk_errors, write_text
from dreamlab.core.text import print
from dreamlab.engine.checkpoint import Checkpoints
from dreamlab.engine.observer import Observer
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.terminal import Terminal
from dreamlab.interop import strangers
from dreamlab.runs import verify as verifying
from dreamlab.runs.locks import is_writing
from dreamlab.runs.run import Run


def verify(args: list[str]) -> int:
    """Run a part of a run again in a clean process; 0 if everything is the same, 1 if not."""
    parser = Parser(prog="dreamlab verify")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frames", type=natural, default=10_000, help="how far; 0: all recorded")
    parser.add_argument("--from", dest="start", metavar="CHECKPOINT", help="latest, best or a name")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    parser.add_argument("--trust-code", action="store_true", help="run what a hub's folder names")
    parser.add_argument("overrides", nargs="*", help="options to change in the second run")
    options = parser.parse_args(args)
    if not (options.folder / "config.yaml").exists():
        raise ConfigError(f"{options.folder} is not a run folder: it has no config.yaml")
    run, config = Run(options.folder), strangers.read_config(options.folder, options.trust_code)
    with disk_errors(every=True), tempfile.TemporaryDirectory(prefix="dreamlab_verify_") as scratch:
        second = Path(scratch) / "run"
        changed = _prepare(config, second, options.overrides)
        begin = _copy_checkpoint(run, config, second, options.start) if options.start else 0
        ahead = _ahead(run, begin, options.frames)
        span = f"{begin:,} to {ahead[-1]:,}"
        if not options.json:
            print(f"running env frames {span} of {options.folder} again", flush=True)
        _run_again(second, len(ahead))
        verdict = verifying.compare(run, Run(second), begin)
    rows = [*verifying.surroundings(run), *((f"options.{k}", a, b) for k, a, b in changed)]
    if verdict.divergence is None and verdict.last is None:
        raise LabError("the second run recorded nothing that could be compared")
    if options.json:
        _print_json(verdict, rows)
    else:
        _report_verdict(verdict, rows)
    return 0 if verdict.divergence is None else 1


def _print_json(verdict: verifying.Verdict, rows: verifying.Rows) -> None:
    told = {"same": verdict.divergence is None, **asdict(verdict)}
    told["surroundings"] = [{"name": k, "then": a, "now": b} for k, a, b in rows]
    print(json_text(told))


def _report_verdict(verdict: verifying.Verdict, rows: verifying.Rows) -> None:
    if (last := verdict.last) is not None and verdict.divergence is None:
        places = f"{verdict.compared} place{'' if verdict.compared == 1 else 's'}"
        print(
            f"same: transitions, losses and weights at {places}, up to env frame "
            f"{last['env_frames']:,} and update {last['updates']:,}"
        )
        if rows:
            print("although these differ between then and now:\n" + verifying.table(rows))
    if verdict.divergence is None:
        return
    print(verifying.describe(verdict.divergence))
    if rows:
        print("what differs between then and now:\n" + verifying.table(rows))
    else:
        print(
            "versions, hardware, code and options are the same: something here is not a function "
            "of the seed (on a GPU set deterministic=true; `dreamlab check` tries the environment)"
        )


def _prepare(config: LabConfig, second: Path, overrides: Sequence[str]) -> verifying.Rows:
    """Write the second run's configuration; return the options that it changes."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        node = OmegaConf.create(dump(config))
        merged = OmegaConf.merge(node, OmegaConf.from_dotlist(list(overrides)))
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"verify: {' '.join(str(error).split())}") from None
    plain: Any = OmegaConf.to_container(merged)
    changed = load_config(plain)
    second.mkdir()
    write_text(second / "config.yaml", to_yaml(_quiet(changed, second)))
    return verifying.changes(dump(config), dump(changed))


def _quiet(config: LabConfig, folder: Path) -> LabConfig:
    """Return the same training without what only looks at it."""
    log = replace(
        config.log, terminal="off", tensorboard=False, wandb=False, chain=True, norms=False
    )
    return replace(
        config,
        run=replace(config.run, dir=str(folder)),
        log=log,
        eval=replace(config.eval, every_frames=0, episodes=1, num_envs=1, video=False),
        report=replace(config.report, every_frames=0),
        checkpoint=replace(config.checkpoint, every_frames=0, every_s=0.0),
        watch=replace(config.watch, on_nan="off", check_every_update=False, command=None),
    )


def _copy_checkpoint(run: Run, config: LabConfig, second: Path, which: str) -> int:
    """Copy a checkpoint with all that it needs; return its env frames."""
    if is_writing(run.folder):
        raise LabError(f"{run.folder} is being trained: leave out --from, or wait until it is done")
    checkpoints = Checkpoints(run.folder / "checkpoints", config.checkpoint, print)
    path = checkpoints.named(which) or checkpoints.folder / which
    if not path.is_dir() or not path.name.isdigit():
        raise LabError(f"{run.folder}: there is no checkpoint {which!r}; {checkpoints.names()}")
    shutil.copytree(path, second / "checkpoints" / path.name)
    if (run.folder / "buffers").is_dir():
        shutil.copytree(run.folder / "buffers", second / "buffers")
    for name in ("chain.jsonl", "metrics.jsonl"):
        shutil.copy(run.folder / name, second / name)
    return int(path.name)


def _ahead(run: Run, begin: int, frames: int) -> list[int]:
    """Return the env frames of the links to compare: all, or up to the first after `frames`."""
    links = verifying.whole_part(verifying.read_chain(run.folder))
    ahead = [link["env_frames"] for link in links if link["env_frames"] > begin]
    if not ahead:
        raise LabError(f"{run.folder}: nothing was recorded after env frame {begin:,}")
    short = sum(f < begin + frames for f in ahead) if frames else len(ahead)
    return ahead[: short + 1]


def _run_again(second: Path, links: int) -> None:
    """Train the prepared folder for a number of links, in a process of its own."""
    command = [sys.executable, "-m", __name__, str(second), str(links)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        text = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise LabError(f"the second run failed:\n{text}")


class StopAfterLinks(Observer):
    """Ends a run once it has written a number of links."""

    def __init__(self, loop: Orchestrator, links: int) -> None:
        self.loop, self.left = loop, links

    def flushed(self, record: dict[str, float]) -> None:
        self.left -= 1
        if self.left == 0:
            self.loop.stop()


def again(folder: Path, links: int) -> int:
    """Train a prepared folder for a number of links: what the clean process does."""
    run = Run(folder)
    config = load_config(read_yaml(run.config_path))
    loop = build.build(config, run, Terminal("off", config.name))
    loop.load()
    loop.observers.add(StopAfterLinks(loop, links))
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(again(Path(sys.argv[1]), int(sys.argv[2])))
