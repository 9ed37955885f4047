"""The YAML files that come with the package, found and described without loading Hydra."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from dreamlab.core.readers import parse_yaml, read_text

GROUPS = ("experiment", "env", "preset")
SENTENCE = re.compile(r"(?<=[.?!])(?<!et al\.) ")


@dataclass(frozen=True)
class Experiment:
    """An experiment as it is listed."""

    name: str
    env: str
    about: str


def config_dir() -> Path:
    """Return the folder of the YAML files: in the installed package, or at a checkout's root."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "configs"


def choices(group: str) -> list[str]:
    """Return the names of the YAML files of a group."""
    return sorted(p.stem for p in (config_dir() / group).glob("*.yaml"))


def experiments() -> list[Experiment]:
    """Return every experiment with its environment and the comment at the top of its file."""
    return [
        _describe(config_dir() / "experiment" / f"{name}.yaml") for name in choices("experiment")
    ]


def experiments_like(word: str) -> list[str]:
    """Return experiments with this word in their name, or on the environment that it names."""
    name = word.lower().replace("-", "_")
    inside = [e for e in choices("experiment") if len(name) > 2 and name in e]
    return inside or [e.name for e in experiments() if word.lower() in e.env.lower().split()]


def _describe(path: Path) -> Experiment:
    text = read_text(path)
    node = parse_yaml(text, path.name)
    lists = (d for d in node.get("defaults", []) if isinstance(d, dict))
    groups = [v for d in lists for k, v in d.items() if k.split("/")[-1] == "env"]
    env = node.get("env") or {}
    suite = env.get("suite") or (groups[-1] if groups else "gym")
    task = env.get("id") or _task(suite)
    return Experiment(path.stem, task if suite == "gym" else f"{suite} {task}", _about(text))


def _task(suite: str) -> str:
    """Return the environment that a group's file names."""
    path = config_dir() / "env" / f"{suite}.yaml"
    return str(parse_yaml(read_text(path), path.name).get("id", ""))


def _about(text: str) -> str:
    """Return the first sentence of the comment at the top, its lines joined."""
    lines = text.splitlines()
    begin = 1 if lines and lines[0].startswith("# @package") else 0
    comment = takewhile(lambda line: line.startswith("#"), lines[begin:])
    return SENTENCE.split(" ".join(line.lstrip("# ").rstrip() for line in comment))[0]
