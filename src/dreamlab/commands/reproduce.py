"""The commands that reproduce runs: code version, options, seeds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from dreamlab.config import compose, dump, load_config
from dreamlab.core.errors import LabError
from dreamlab.core.locate import ours_only
from dreamlab.core.readers import read_text
from dreamlab.core.text import one_line
from dreamlab.results.groups import Group, Groups, Member
from dreamlab.runs.git_state import KEPT_CHARACTERS
from dreamlab.runs.options import flatten

ROOT = "again"
"""Folder of the new runs, so that the old ones are not resumed."""
Code = tuple[str, str]
"""A commit and the uncommitted changes on top of it."""


@dataclass
class Recipe:
    """Shell commands, and the files they read."""

    lines: list[str] = field(default_factory=list[str])
    files: dict[str, str] = field(default_factory=dict[str, str])


def recipe(groups: Groups, arguments: Sequence[str]) -> Recipe:
    """Return the commands that reproduce all runs and the report with these arguments."""
    out = Recipe()
    projects = (m.run.manifest.get("project") or {} for m in groups.members)
    for commit in dict.fromkeys(p["commit"] for p in projects if p.get("commit")):
        word = shlex.quote(one_line(str(commit)))
        out.lines.append(f"# started in your own repository, at commit {word}")
    codes = list(dict.fromkeys(code_of(m) for m in groups.members))
    for i, code in enumerate(codes):
        patch = "changes.patch" if len(codes) == 1 else f"changes_{i + 1}.patch"
        before = codes[i - 1][0] if i else ""
        out.lines += [f"git checkout {shlex.quote(one_line(code[0]))}"] if code[0] != before else []
        out.lines += _apply(out, code[1], patch)
        for group in groups.groups:
            out.lines += _trains(out, group, [m for m in group.members if code_of(m) == code])
        if patch in out.files and i + 1 < len(codes):
            out.lines.append(f"git apply --reverse {patch}")
    folders = [f"{slug(g.name)}={ROOT}/{slug(g.name)}" for g in groups.groups]
    page = ["dreamlab", "report", *folders, *arguments, "--out", f"{ROOT}.html"]
    out.lines.append(shlex.join(page))
    return out


def slug(name: str) -> str:
    """Return a name that is a valid folder name and a single shell word."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_") or "_"


def code_of(member: Member) -> Code:
    """Return the code version of a run."""
    git = member.run.manifest.get("git") or {}
    return str(git.get("commit") or ""), str(git.get("diff") or "")


def _apply(out: Recipe, diff: str, patch: str) -> list[str]:
    """Return the command that applies uncommitted changes, if there were any."""
    if not diff:
        return []
    if len(diff) >= KEPT_CHARACTERS:
        return ["# there were uncommitted changes, too large to be stored in the run"]
    out.files[patch] = diff if diff.endswith("\n") else f"{diff}\n"
    return [f"git apply {patch}"]


def _trains(out: Recipe, group: Group, members: list[Member]) -> list[str]:
    """Return one command for all runs of a group that differ only in the seed."""
    seeds: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for m in members:
        name = slug(group.name) if len(group.tasks) == 1 else f"{slug(group.name)}/{slug(m.task)}"
        arguments = typed(m)
        if arguments is None:
            file = f"{name.replace('/', '_')}.yaml"
            out.files.setdefault(file, f"# @package _global_\n{read_text(m.run.config_path)}")
            arguments = (file,)
        found = seeds.setdefault((arguments, name), [])
        found += [str(m.seed)] if str(m.seed) not in found else []
    return [
        shlex.join(["dreamlab", "train", *words, f"seed={','.join(s)}", f"run.dir={ROOT}/{name}"])
        for (words, name), s in seeds.items()
    ]


def typed(member: Member) -> tuple[str, ...] | None:
    """Return the arguments of `dreamlab train` without seed and folder.

    None if they do not give the run's configuration: it was started from Python or from a file that
    may have moved, or it was extended later.
    """
    command = [str(w) for w in member.run.manifest.get("command") or []]
    words = [w for w in command[2:] if not w.startswith(("seed=", "run.dir="))]
    if command[:2] != ["dreamlab", "train"] or any(w.endswith((".yaml", ".yml")) for w in words):
        return None
    if any(w.lstrip("+~").startswith("hydra") for w in words):
        return None
    try:
        with ours_only():  # the command may be untrusted: it is only compared, never executed
            again = load_config(compose([*words, f"seed={member.seed}"]))
    except LabError:
        return None
    options = flatten(dump(again))
    return tuple(words) if _but_run(options) == _but_run(member.config) else None


def _but_run(options: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in options.items() if not k.startswith("run.")}
