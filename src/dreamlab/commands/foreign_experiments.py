"""Which experiment a command line of another program means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dreamlab.config_files import Experiment, choices, experiments
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.foreign_answers import SUITES

Options = dict[str, list[str]]
ALGORITHMS = {
    "dreamerv3": "dreamer", "dreamer_v3": "dreamer", "dreamerv2": "dreamer_v2",
    "dreamerv1": "dreamer_v1", "dreamer": "dreamer", "td3": "td3_bc", "ddqn": "dqn",
    "double_dqn": "dqn", "rainbow": "dqn_rainbow", "c51": "dqn_rainbow", "qrdqn": "dqn_rainbow",
    "ric": "diffusion_rl_ric", "idql": "diffusion_rl", "diffusion": "imitation", "bc": "imitation",
    "cql": "cal_ql", "pets": "mpc", "parl": "pa_rl", "worldmodels": "world_models",
    "tdmpcsquare": "tdmpc_square", "r2dreamer": "r2_dreamer", "ppo_lstm": "ppo",
    "ppo_continuous_action": "ppo", "ppo_atari": "ppo_pong", "sac_continuous_action": "sac",
    "dqn_atari": "dqn_pong",
}  # fmt: skip
"""Other names, and how experiments of theirs start here."""
OF_TASK = {"dmc": "dreamer_dmc_vision"}
"""What DreamerV3's own configuration makes of a task without a block."""
DATA = {"dataset", "dataset.repo_id", "dataset.root", "dataset_path"}
WANTED = "give an experiment (`dreamlab train` lists them)"


def chosen(options: Options, words: Sequence[str]) -> list[str]:
    """Return the words that name the experiment; take the options away that said so."""
    if own := [w for w in words if _names_one(w)]:
        return own
    if "config" in options or "config_name" in options or "config_path" in options:
        return [_file(_pop(options, "config", "config_name", "config_path"))]
    if "configs" in options:
        return _blocks(options.pop("configs"), options)
    if "algo" in options or "algorithm" in options or "alg" in options:
        return _algorithm(_pop(options, "algo", "algorithm", "alg"), options)
    if "policy.type" in options or "dataset.repo_id" in options:
        return [_imitation(options)]
    if "task" in options:
        return [_of_task(options["task"][0])]
    raise ConfigError(f"no algorithm selected: {WANTED}")


def _names_one(word: str) -> bool:
    path = word.endswith((".yaml", ".yml")) and "=" not in word
    return path or word in choices("experiment") or word.startswith("+experiment=")


def _pop(options: Options, *names: str) -> str:
    return next(options.pop(n) for n in names if n in options)[0]


def _file(name: str) -> str:
    """Return an experiment of ours by the name of a file that is not there, else the file."""
    stem = Path(name).stem
    return stem if not Path(name).is_file() and stem in choices("experiment") else name


def _blocks(blocks: Sequence[str], options: Options) -> list[str]:
    """Return what DreamerV3's `--configs` blocks are here; sizes and `debug` are options."""
    names = [b for b in blocks if b != "defaults" and not b.startswith("size") and b != "debug"]
    sizes = [f"workflow.size={b.removeprefix('size')}" for b in blocks if b.startswith("size")]
    debug = "debug" in blocks
    if not names:
        of_task = [_of_task(options["task"][0])] if "task" in options else ["dreamer_debug"]
        return [*of_task, *sizes, *(["+preset=debug"] if debug and "task" in options else [])]
    known = {e.removeprefix("dreamer_") for e in choices("experiment") if e.startswith("dreamer_")}
    block = SUITES.get(names[-1].replace("memory_maze", "memorymaze"), names[-1])
    if block not in known:
        raise ConfigError(unknown("experiment for the block", names[-1], known, "--configs"))
    return [f"dreamer_{block}", *sizes, *(["+preset=debug"] if debug else [])]


def _of_task(task: str) -> str:
    prefix = task.partition("_")[0]
    name = OF_TASK.get(prefix, f"dreamer_{SUITES.get(prefix, prefix)}")
    if name not in choices("experiment"):
        raise ConfigError(f"--task {task}: no experiment is known for it: {WANTED}")
    return name


def is_algorithm(name: str) -> bool:
    """Return whether there are experiments for what another program calls an algorithm."""
    return bool(_with_algorithm(name))


def _with_algorithm(name: str) -> list[Experiment]:
    key = name.lower().replace("-", "_")
    start = ALGORITHMS.get(key, key)
    return [e for e in experiments() if e.name == start or e.name.startswith(f"{start}_")]


def _algorithm(name: str, options: Options) -> list[str]:
    """Return an experiment with this algorithm, on the requested environment, if any."""
    found = _with_algorithm(name)
    if not found:
        raise ConfigError(f"--algo: there is no {name!r} here: {', '.join(_algorithms())}")
    if found[0].name.startswith("imitation") and DATA & options.keys():
        return [_imitation(options)]
    env = next((options[k][0] for k in ("env", "env_id", "task") if k in options), "")
    return [_best(found, env).name]


def _algorithms() -> list[str]:
    folder = Path(__file__).parents[1] / "workflows"
    return sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("_"))


def _best(found: Sequence[Experiment], env: str) -> Experiment:
    """Return the experiment on this environment, else one on Gymnasium's, else the first."""
    same = [e for e in found if e.env == env or e.env.rpartition(" ")[2] == env]
    gym = [e for e in found if " " not in e.env]
    return min(same or gym or found, key=lambda e: "offline" in e.name)


def _imitation(options: Options) -> str:
    """Return the experiment that learns from a LeRobot dataset."""
    data = options.get("dataset.repo_id", [""])[0]
    return "imitation_pusht" if "keypoints" in data else "imitation_pusht_pixels"
