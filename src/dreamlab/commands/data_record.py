"""`dreamlab data record`: record episodes of a trained policy as a dataset."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dreamlab.commands.arguments import (
    POSITIVE,
    POSITIVE_INT,
    SEED,
    Place,
    argument,
    as_json,
    checkpoint,
    run_folder,
    trust_code,
    verb,
)
from dreamlab.commands.data_convert import CODECS
from dreamlab.commands.printing import json_text
from dreamlab.core.errors import LabError
from dreamlab.core.files import disk_errors
from dreamlab.core.text import one_line, print

if TYPE_CHECKING:
    from dreamlab.data.datasets.table import Feature
    from dreamlab.envs.vector import Envs
    from dreamlab.training import Trained

MODES = ("eval", "sample", "train")


@dataclass(frozen=True)
class Options:
    """Options of `dreamlab data record`."""

    folder: Path
    target: Path
    episodes: int
    checkpoint: str
    seed: int
    mode: str
    render: bool
    fps: float | None
    task: str | None
    codec: str
    as_json: bool
    trust_code: bool


@verb(
    "record",
    "dreamlab data record experiments/first data/first --episodes 50",
    "dreamlab data record experiments/first data/mixed --mode train --render",
)
@run_folder("a run directory, a hub folder, or hub:OWNER/NAME[@REVISION]")
@argument("target", "folder of the new dataset", type=Place(), metavar="TARGET")
@click.option("--episodes", type=POSITIVE_INT, default=10, help="Number of episodes.")
@checkpoint
@click.option("--seed", type=SEED, default=30_000, help="Seed of the environment.")
@click.option(
    "--mode", type=click.Choice(MODES), default="eval",
    help="How to act: as in evaluation, with sampled actions, or exploring as in training.",
)  # fmt: skip
@click.option("--render", is_flag=True, help="Render frames: adds observation.images.render.")
@click.option("--fps", type=POSITIVE, help="Frames per second; default: the environment's own.")
@click.option("--task", help="Task description; default: the environment's id.")
@click.option("--codec", type=click.Choice(CODECS), default="libsvtav1", help="Video codec.")
@as_json
@trust_code
def record(**given: Any) -> int:
    """Record episodes of a trained policy as a LeRobot v3.0 dataset.

    Observations and actions are in the environment's own units. Success is recorded if the
    environment reports it.
    """
    from dreamlab import training
    from dreamlab.accel import dispatch
    from dreamlab.envs.vector import Envs
    from dreamlab.export import hub
    from dreamlab.interop import strangers

    options = Options(**given)
    folder = hub.resolve(options.folder)
    trained = training.load_policy(folder, options.checkpoint, options.trust_code)
    if not trained.config.env.named:
        raise LabError(f"{folder}: the run has no environment to record in")
    dispatch.set_reference(trained.config.accel == "off")
    with strangers.guarded(folder, options.trust_code), disk_errors("Choose another TARGET"):
        envs = Envs(replace(trained.config.env, num_envs=1, vector="sync"), options.seed)
        try:
            about = _record(trained, envs, options)
        finally:
            envs.close()
    if options.as_json:
        print(json_text(about))
    else:
        print(one_line(" · ".join(f"{k} {v}" for k, v in about.items())))
    return 0


def _record(trained: Trained, envs: Envs, options: Options) -> dict[str, Any]:
    """Record the episodes and return a summary."""
    from dreamlab.core.types import Mode
    from dreamlab.data.datasets.convert import write_episodes
    from dreamlab.data.datasets.lerobot_write import Recording
    from dreamlab.data.datasets.table import REWARD, SUCCESS
    from dreamlab.engine.recorder import How, play

    config = trained.config
    if trained.statistics:
        envs.normalizer.set_state(trained.statistics)
    envs.normalizer.frozen = True
    trained.workflow.eval()
    fps = options.fps or _own_fps(envs)
    recording = Recording(fps, {"action": _action(envs)}, config.env.id, options.codec)
    how = How(Mode(options.mode), options.render, options.seed, config.eval.max_steps)
    played = islice(play(trained.workflow, envs, how), options.episodes)
    returns: list[float] = []
    success: list[bool] = []
    frames = 0
    for episode in write_episodes(options.target, played, recording, options.task or config.env.id):
        returns.append(float(episode.columns[REWARD].sum()))
        frames += episode.length
        if SUCCESS in episode.columns:
            success.append(bool(episode.columns[SUCCESS].any()))
    about = {
        "target": str(options.target), "episodes": len(returns), "frames": frames,
        "return": sum(returns) / len(returns),
    }  # fmt: skip
    return {**about, "success": sum(success) / len(success)} if success else about


def _own_fps(envs: Envs) -> float:
    """Return the decisions per second of the environment, or 30 if it does not define them."""
    own = envs.vec.envs[0].metadata.get("render_fps")
    return float(own) / envs.config.repeat if own else 30.0


def _action(envs: Envs) -> Feature:
    from dreamlab.data.datasets.table import Feature

    spec = envs.spec.action
    if isinstance(spec.classes, int):
        return Feature("int64", (1,), classes=spec.classes)
    if spec.is_discrete:
        raise LabError("MultiDiscrete actions cannot be recorded")
    bounds = envs.own_bounds()
    low, high = (None, None) if bounds is None else (tuple(map(float, b.ravel())) for b in bounds)
    return Feature("float32", spec.shape, low=low, high=high)
