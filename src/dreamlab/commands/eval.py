"""`dreamlab eval`: evaluate a trained policy."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dreamlab.commands.arguments import (
    POSITIVE_INT,
    SEED,
    Place,
    as_json,
    checkpoint,
    run_folder,
    trust_code,
    verb,
)
from dreamlab.core.errors import LabError
from dreamlab.core.limits import EVAL_SEED
from dreamlab.core.text import print

if TYPE_CHECKING:
    from dreamlab.engine.evaluator import EvalResult


@dataclass(frozen=True)
class Options:
    """Options of `dreamlab eval`."""

    folder: Path
    episodes: int
    checkpoint: str
    seed: int
    video: bool
    out: Path | None
    as_json: bool
    trust_code: bool


@verb(
    "eval",
    "dreamlab eval experiments/first --checkpoint best --episodes 20",
    "dreamlab eval hub:OWNER/NAME --video --out measured",
)
@run_folder("a run directory, a hub folder, or hub:OWNER/NAME[@REVISION]")
@click.option("--episodes", type=POSITIVE_INT, default=10, help="Number of episodes.")
@checkpoint
@click.option("--seed", type=SEED, default=EVAL_SEED, help="Seed of the environments.")
@click.option("--video", is_flag=True, help="Record a video of an episode.")
@click.option("--out", type=Place(), help="Output folder; default: the run directory.")
@as_json
@trust_code
def command(**given: Any) -> int:
    """Evaluate a trained policy in new episodes.

    Prints returns and lengths and writes them to report/eval.json; videos go to videos/. The device
    and `accel` are those of the run. Hub folders are read-only.
    """
    from dreamlab import training
    from dreamlab.export import hub

    options = Options(**given)
    folder = hub.resolve(options.folder)
    out = options.out or (None if hub.is_hub(folder) else folder)
    if options.video and out is None:
        raise LabError("eval: hub folders are read-only: add --out FOLDER")
    trained = training.load_policy(folder, options.checkpoint, options.trust_code)
    changed = replace(trained.config.eval, episodes=options.episodes, seed=options.seed)
    result = training.measure(trained, folder, changed, options.video, options.trust_code)
    metrics = _finite({"env_frames": trained.env_frames, **result.metrics()})
    measured = {**metrics, "returns": result.returns}
    faults = _keep(result, measured, out, f"eval_seed{options.seed}.mp4")
    _tell(metrics, {**measured, "video": result.video and str(result.video)}, options.as_json)
    if result.cut:
        print(result.cut_text(changed.max_steps), file=sys.stderr)
    for what, fault in faults.items():
        print(f"eval: the {what} could not be written: {fault}", file=sys.stderr)
    asked = "video" in faults or options.out is not None
    return 2 if faults and asked else 0


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    if wrong := [k for k, v in metrics.items() if not math.isfinite(v)]:
        raise LabError(
            f"eval: {wrong[0]} is {metrics[wrong[0]]}: the environment or its rewards are not "
            f"finite (validate it with `dreamlab check`)"
        )
    return metrics


def _keep(
    result: EvalResult, measured: dict[str, Any], out: Path | None, film: str
) -> dict[str, OSError]:
    """Write the results and the video; return what could not be written, and why."""
    from dreamlab.core.files import write_json
    from dreamlab.engine.video import Films

    films = Films(lambda text: print(f"eval: {text}", file=sys.stderr))
    faults: dict[str, OSError] = {}
    if out is None:
        return faults
    try:
        write_json(out / "report" / "eval.json", measured)
    except OSError as error:
        faults["result"] = error
    if result.frames:
        try:
            result.video = films.write(out / "videos" / film, result.frames)
        except OSError as error:
            faults["video"] = error
    return faults


def _tell(metrics: dict[str, float], measured: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(measured, indent=2))
        return
    for name, value in metrics.items():
        print(f"{name:18s} {value:.6g}")
    if measured["video"]:
        print(f"video              {measured['video']}")
