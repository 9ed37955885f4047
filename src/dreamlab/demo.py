"""The demonstration behind `make demo`: learn a world model, act in it, and show the dream."""

from __future__ import annotations

import time
from pathlib import Path

from dreamlab import build, training
from dreamlab.config import compose, load_config
from dreamlab.core.errors import LabError
from dreamlab.core.files import disk_errors
from dreamlab.engine.terminal import Terminal
from dreamlab.results.learning_curve import learning_curve
from dreamlab.runs.run import new_folder

EXPERIMENT = "dreamer_cartpole"
FRAMES = 11_000
"""Fewer than the experiment's, to finish within minutes."""


def run_demo(overrides: list[str]) -> int:
    """Train from scratch with a live view, then say what was learned and what to try next."""
    folder = new_folder("demo")
    options = [f"+experiment={EXPERIMENT}", f"training.total_frames={FRAMES}", f"run.dir={folder}"]
    config = load_config(compose([*options, *overrides]))
    terminal = Terminal(config.log.terminal, f"training DreamerV3 on {config.env.id}")
    began = time.monotonic()
    with (
        disk_errors("Choose another run.dir"),
        training.open_run(config) as opened,
    ):
        run, config, folder = opened.run, opened.config, opened.run.folder
        if opened.found:
            raise LabError(f"{folder} already contains a run: choose another run.dir")
        loop = build.build(config, run, terminal)
        assert loop.parts.evaluator is not None
        before = loop.parts.evaluator.run(loop.workflow, None).metrics()["eval/return"]
        opened.keep()
        status = loop.run()
    if status != "finished":
        terminal.say(f"interrupted; resume with: dreamlab resume {folder}")
        return 130
    learning_curve(run.metrics(), folder / "report" / "learning_curve.png", config.name)
    after, best = run.manifest["final_eval"]["eval/return"], run.manifest["best_eval"]
    _summary(terminal, folder, (before, best, after), time.monotonic() - began)
    return 0


def _summary(
    terminal: Terminal, folder: Path, returns: tuple[float, float, float], seconds: float
) -> None:
    def last(*patterns: str) -> Path | None:
        found = (p for pattern in patterns for p in sorted(folder.glob(pattern), reverse=True))
        return next(found, None)

    before, best, after = returns
    lines = [
        "",
        f"return before training  {before:8.1f}",
        f"best during training    {best:8.1f}   (checkpoint `best`)",
        f"return after training   {after:8.1f}   ({seconds:.0f} s)",
        f"run directory           {folder}",
        f"learning curve          {last('report/learning_curve.png')}",
        f"open-loop prediction    {last('report/openloop_*.mp4', 'report/openloop_*.frames.*')}",
        f"... as curves           {last('report/openloop_state_*.png')}",
        f"episode video           {last('videos/*.mp4', 'videos/*.frames.*')}",
        "",
        "next steps:",
        f"  dreamlab eval {folder} --checkpoint best --episodes 20 --video",
        f"  dreamlab train ppo_cartpole env.suite=imagined env.id={folder}",
        "  dreamlab train sac_pendulum seed=1",
    ]
    for line in lines:
        terminal.say(line)
