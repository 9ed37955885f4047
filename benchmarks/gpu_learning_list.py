"""What `gpu_learning.py` trains: the list, variants of it, and which simulators are there."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dreamlab.config import compose, load_config
from dreamlab.core.text import print


@dataclass(frozen=True)
class Entry:
    """One task, how it is trained, and for how long."""

    task: str
    name: str
    options: tuple[str, ...]
    frames: int
    needs: str
    """The package that its simulator is in."""
    seeds: int = 3


def _entries() -> tuple[Entry, ...]:
    lengths = {
        "walker_walk": 200_000, "cartpole_swingup": 100_000, "reacher_easy": 100_000,
        "cheetah_run": 150_000, "finger_spin": 100_000, "hopper_stand": 200_000,
    }  # fmt: skip
    now = [
        Entry(t, "dreamer_v3", ("+experiment=dreamer_walker", f"env.id={t}"), n, "dm_control")
        for t, n in lengths.items()
    ]
    then = ("+experiment=dreamer_v3_2023_dmc_proprio", "env.id=walker_walk")
    old = Entry("walker_walk", "dreamer_v3_2023", then, 200_000, "dm_control")
    atari = [
        Entry(
            game, "dreamer_v3",
            ("+experiment=dreamer_atari100k", f"env.id={game}", "workflow.size=12m"),
            400_000, "ale_py", seeds=1,
        )
        for game in ("boxing", "pong")
    ]  # fmt: skip
    crafter = ("+experiment=dreamer_crafter", "workflow.size=12m")
    last = Entry("crafter", "dreamer_v3", crafter, 200_000, "crafter", seeds=1)
    return (now[0], old, *now[1:], *_tdmpc2(), *atari, last)


def _tdmpc2() -> list[Entry]:
    """Return the tasks of TD-MPC2: frames are twice the decisions.

    As published but for bfloat16, which the kernels for plans take.
    """
    lengths = {
        "cartpole_swingup": 100_000, "cup_catch": 100_000, "finger_spin": 100_000,
        "walker_walk": 200_000,
    }  # fmt: skip
    options = ("+experiment=tdmpc2_dmc_proprio", "precision=bf16", "env.vector=async")
    return [
        Entry(t, "tdmpc2", (*options, f"env.id={t}", "eval.every_frames=20_000"), n, "dm_control")
        for t, n in lengths.items()
    ]


ENTRIES = _entries()

SIMULATORS = {"dmc": "dm_control", "atari": "ale_py", "crafter": "crafter"}
VARIANT_FRAMES = 200_000


def variant(text: str) -> Entry:
    """Return what NAME:TASK:EXPERIMENT[:OPTION,OPTION] asks for; its options are checked here."""
    parts = text.split(":", 3)
    if len(parts) < 3 or not all(re.fullmatch(r"\w+", part) for part in parts[:3]):
        raise SystemExit(f"--variant {text}: must be NAME:TASK:EXPERIMENT[:OPTION,OPTION]")
    name, task, experiment = parts[:3]
    if (task, name) in {(e.task, e.name) for e in ENTRIES}:
        raise SystemExit(f"--variant {text}: {task}/{name} is in the list; choose another name")
    more = re.split(r",(?![^\[{(]*[\]})])", parts[3]) if parts[3:] and parts[3] else []
    options = (f"+experiment={experiment}", f"env.id={task}", *more)
    suite = load_config(compose(list(options))).env.suite
    return Entry(task, name, options, VARIANT_FRAMES, SIMULATORS.get(suite, "dreamlab"), seeds=1)


def choose(
    only: Sequence[str], seeds: int | None, frames: int | None, variants: Sequence[Entry] = ()
) -> list[Entry]:
    """Return the entries that are wanted, by task or `task/name`, with other seeds and frames."""
    known = {e.task for e in ENTRIES} | {f"{e.task}/{e.name}" for e in ENTRIES}
    if strange := sorted(set(only) - known):
        raise SystemExit(f"--only: {', '.join(strange)} is none of {', '.join(sorted(known))}")
    every = not only and not variants
    wanted = [e for e in ENTRIES if every or {e.task, f"{e.task}/{e.name}"} & set(only)]
    wanted += variants
    return [
        Entry(e.task, e.name, e.options, frames or e.frames, e.needs, seeds or e.seeds)
        for e in wanted
    ]


def installed(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries whose simulator is here; say which are left out."""
    missing = sorted({e.needs for e in entries if importlib.util.find_spec(e.needs) is None})
    for package in missing:
        tasks = ", ".join(dict.fromkeys(e.task for e in entries if e.needs == package))
        print(f"skipped, {package} is not installed: {tasks}", flush=True)
    return [e for e in entries if e.needs not in missing]
