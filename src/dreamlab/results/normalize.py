"""Scores of different tasks on one scale, so that they may be averaged.

`atari_scores.csv` holds what a random agent and a human tester reach in the 57 games, up to 30
no-op starts (Mnih et al. 2015 and Wang et al. 2016; the table of Schrittwieser et al. 2020, which
rliable's examples use). Video Pinball's random score is 0 there, 16,256.9 in other tables.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from dreamlab.core.errors import LabError
from dreamlab.results.groups import Member
from dreamlab.results.stats import Array

RULES = ("auto", "none", "atari", "dmc", "minmax")
WORDS = {
    "atari": "human-normalized: 0 is random, 1 is human",
    "dmc": "divided by 1,000",
    "as_is": "raw",
    "minmax": "0 is the lowest, 1 the highest value of the compared runs",
}
DMC_MOST = 1_000.0


@dataclass(frozen=True)
class Scale:
    """What counts as 0 and as 1 on a task, and where that is from."""

    kind: str
    low: float = 0.0
    high: float = 1.0

    def __call__(self, scores: Array) -> Array:
        """Return normalized scores; 0 where every compared run is the same."""
        return (scores - self.low) / ((self.high - self.low) or 1.0)


@cache
def atari_scores() -> dict[str, tuple[float, float]]:
    """Return the random and the human score by game, names without `_`."""
    text = files("dreamlab.results").joinpath("atari_scores.csv").read_text()
    rows = csv.DictReader(text.splitlines())
    return {_game(r["game"]): (float(r["random"]), float(r["human"])) for r in rows}


def _game(task: str) -> str:
    """Return the game's name of `ms_pacman`, `ALE/MsPacman-v5` and `MsPacmanNoFrameskip-v4`."""
    bare = re.sub(r"(-ram)?(Deterministic|NoFrameskip)?-v\d+$", "", task.removeprefix("ALE/"))
    return bare.replace("_", "").lower()


def _atari(task: str) -> Scale:
    if _game(task) not in atari_scores():
        raise LabError(f"--normalize atari: no human score is known for {task}; try minmax")
    return Scale("atari", *atari_scores()[_game(task)])


def _minmax(values: Iterable[Array]) -> Scale:
    seen = list(values)
    return Scale("minmax", float(min(v.min() for v in seen)), float(max(v.max() for v in seen)))


def scale_for(rule: str, member: Member, metric: str, values: Iterable[Array]) -> Scale:
    """Return the scale of a run's task; `values` is all that the compared runs reached there.

    Only returns have their own scale in a suite; of another metric it is the compared runs'.
    """
    is_return = metric.endswith("/return")
    if rule == "minmax":
        return _minmax(values)
    if metric.endswith("success") and rule == "auto":
        return Scale("as_is")
    if not is_return:
        return _minmax(values)
    if rule == "atari" or (rule == "auto" and member.suite == "atari"):
        return _atari(member.task)
    if rule == "dmc" and member.suite != "dmc":
        raise LabError(f"--normalize dmc: {member.task} is not a task of the Control Suite")
    if member.suite == "dmc":
        return Scale("dmc", 0.0, DMC_MOST)
    return Scale("as_is") if member.suite == "crafter" else _minmax(values)


def kind_of(scales: Mapping[str, Scale]) -> str:
    """Return how scores were normalized in a word: a kind, `none`, or `mixed`."""
    kinds = {s.kind for s in scales.values()}
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none"


def told(scales: Mapping[str, Scale]) -> str:
    """Return how scores were normalized in a sentence; of what only this table says, the ends."""
    parts: list[str] = []
    for kind, words in WORDS.items():
        own = {t: s for t, s in scales.items() if s.kind == kind}
        ends = [f"{t} {s.low:.4g} to {s.high:.4g}" for t, s in own.items()]
        names = ends if kind == "minmax" else list(own)
        listed = f" ({', '.join(names)})" if kind == "minmax" or len(own) < len(scales) else ""
        parts += [f"{words}{listed}"] if own else []
    return "; ".join(parts)
