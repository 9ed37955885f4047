"""The two-minute demonstration behind `make demo`."""

from __future__ import annotations

import time
from pathlib import Path

from dreamlab import build
from dreamlab.config import compose, load_config
from dreamlab.engine.terminal import Terminal
from dreamlab.runs.plot import learning_curve
from dreamlab.runs.run import FolderLock, new_folder

EXPERIMENT = "ppo_cartpole"


def run_demo(overrides: list[str]) -> int:
    """Train from scratch with a live view, then say what was learnt and what to try next."""
    folder = new_folder("demo")
    config = load_config(compose([f"+experiment={EXPERIMENT}", f"run.dir={folder}", *overrides]))
    run, config, _ = build.open_run(config)
    terminal = Terminal(config.log.terminal, f"PPO learns {config.env.id}")
    began = time.monotonic()
    with FolderLock(run.folder):
        loop = build.build(config, run, terminal)
        before = loop.parts.evaluator.run(loop.workflow, None).metrics()["eval/return"]
        status = loop.run()
    if status != "finished":
        terminal.say(f"interrupted; go on with: dreamlab resume {folder}")
        return 130
    curve = learning_curve(run.metrics(), folder / "report" / "learning_curve.png", config.name)
    after = run.manifest["final_eval"]["eval/return"]
    _summary(terminal, folder, curve, before, after, time.monotonic() - began)
    return 0


def _summary(
    terminal: Terminal,
    folder: Path,
    curve: Path | None,
    before: float,
    after: float,
    seconds: float,
) -> None:
    video = next(iter(sorted((folder / "videos").glob("*.mp4"))), None)
    lines = [
        "",
        f"return before training  {before:8.1f}",
        f"return after training   {after:8.1f}   ({seconds:.0f} s)",
        f"run folder              {folder}",
        f"learning curve          {curve}",
        f"episode video           {video}",
        "",
        "try next:",
        f"  dreamlab eval {folder} --episodes 20 --video",
        f"  dreamlab resume {folder} training.total_frames=150_000",
        "  dreamlab train +experiment=sac_pendulum seed=1",
    ]
    for line in lines:
        terminal.say(line)
