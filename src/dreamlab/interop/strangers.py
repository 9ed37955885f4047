"""Configurations that another process wrote: read as data, checked, built from what is ours alone.

A policy from a hub comes with a configuration that names classes and an environment. Of a stranger
only this package's own classes are built, in registered environments with plain options. Whatever
else it names needs `--trust-code`, which says what will run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dreamlab.config import LabConfig, load_config, migrate, read_yaml
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.locate import ours_only
from dreamlab.core.text import one_line, print
from dreamlab.core.tree import tree_leaves
from dreamlab.envs.allowed import foreign
from dreamlab.envs.vector import EnvConfig

MOST_BYTES = 1 << 18
MOST_LEVELS = 20
# Where the classes live that an untrusted configuration may name.
OURS = tuple(f"dreamlab.{room}." for room in ("workflows", "components", "nn", "data"))
# Options about the user's machine: commands, URLs, folders, trackers.
NOT_THEIRS = ("watch", "log", "run", "checkpoint", "report")
ONLY = (
    "An untrusted configuration may name only dreamlab's own classes, and registered environments "
    "with plain options. If you trust its author, add --trust-code (Python: trust_code=True)"
)
MARKS = Path(".cache", "huggingface", "download")


def is_hub(folder: Path) -> bool:
    """Return whether a folder has a policy written by `write_hub`; a run has no such file."""
    return all((folder / name).is_file() for name in ("model.safetensors", "config.yaml"))


def is_strange(folder: Path) -> bool:
    """Return whether a folder came from a hub: a policy, or marked by a hub's client.

    Such a client writes down, for every file it brings into a folder, where it is from.
    """
    if is_hub(folder) or _repo(folder):
        return True
    place = Path(os.path.realpath(folder))
    marks = (
        p / MARKS / place.relative_to(p) / "config.yaml.metadata" for p in (place, *place.parents)
    )
    return any(mark.is_file() for mark in marks)


def _repo(folder: Path) -> Path | None:
    """Return the folder of a repository in the cache of a hub's client, if this is one of it."""
    place = Path(os.path.realpath(folder))
    found = (p for p in (place, *place.parents) if p.parent.name == "snapshots")
    return next((p.parents[1] for p in found if p.parents[1].name.startswith("models--")), None)


def label(folder: Path) -> str:
    """Return what to call an untrusted folder: its name on the hub where that is known."""
    repo = _repo(folder)
    name = None if repo is None else repo.name.removeprefix("models--").replace("--", "/", 1)
    return str(folder) if name is None else f"hub:{name}"


# -- reading --------------------------------------------------------------------------------------


def read_config(folder: Path, trust_code: bool = False, quiet: bool = False) -> LabConfig:
    """Return the configuration of a run or hub policy; an untrusted one is checked first.

    With `trust_code` a stranger may name other code, which is printed unless `quiet`.
    """
    if not is_strange(folder):
        if trust_code:
            raise ConfigError(
                f"--trust-code has no effect: {folder} is not a policy from a hub. Remove it"
            )
        return load_config(read_yaml(folder / "config.yaml"), stored=True)
    with guarded(folder, trust_code):
        _check_links(folder)
        node = migrate(read_plain(folder / "config.yaml"))
        node = {k: v for k, v in node.items() if k not in NOT_THEIRS}
        code = foreign_code(node)
        _trust(label(folder), code, trust_code, quiet)
        return load_config(node, stored=True)


def check_files(arguments: Sequence[str], trust_code: bool = False) -> bool:
    """Raise if a YAML file from a hub that was typed names other code; tell if there was one.

    What is about its reader's machine (commands, addresses, folders) needs trust as well.
    """
    paths = (Path(a.rpartition("=")[2].strip("'\"")) for a in arguments)
    found = [p for p in paths if p.suffix in (".yaml", ".yml") and is_strange(p.parent)]
    for path in found:
        node = migrate(read_plain(path))
        theirs = [(k, "options of your machine") for k in NOT_THEIRS if k in node]
        _trust(str(path), [*foreign_code(node), *theirs], trust_code)
    return bool(found)


def _trust(whose: str, code: Sequence[tuple[str, str]], trusted: bool, quiet: bool = False) -> None:
    """Say what will run that is not ours, or refuse it."""
    if code and not trusted:
        where, what = code[0]
        raise LabError(f"{whose} would run {what[:120]} ({where}). {ONLY}")
    if code and not quiet:
        lines = (f"  {where:24s} {what}" for where, what in code)
        print(
            f"{whose} is trusted to run code outside dreamlab:",
            *lines,
            sep="\n",
            file=sys.stderr,
        )


@contextmanager
def guarded(folder: Path, trust_code: bool = False) -> Iterator[None]:
    """Build nothing but ours of an untrusted folder, and say in one line what does not work.

    Its options reach code that believes them: they can fail in it in any way. Nothing is guarded
    in the user's own runs, nor in what the user trusts.
    """
    if trust_code or not is_strange(folder):
        yield
        return
    try:
        with ours_only():
            yield
    except LabError as error:
        text = str(error).partition("\n")[0][:800]
        known = text.startswith(label(folder))
        raise LabError(text if known else f"{label(folder)}: {text}") from error
    except Exception as error:
        first = one_line(str(error).partition("\n")[0])[:200]
        raise LabError(f"{label(folder)} does not work: {type(error).__name__}: {first}") from error


def read_plain(path: Path) -> dict[str, Any]:
    """Return a small YAML file as it is written: no aliases, nothing looked up elsewhere."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise LabError(f"{path} is too large for a configuration")
        text = path.read_bytes().decode()
        _check_events(path, text)
        node = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path} is not valid YAML: {reason}") from None
    if not isinstance(node, dict):
        raise ConfigError(f"{path} is not a configuration")
    for where, value in tree_leaves(node):
        if "${" in where or (isinstance(value, str) and "${" in value):
            raise ConfigError(f"{path}: {where.replace('/', '.')}: interpolations are not allowed")
    return {str(k): v for k, v in node.items()}


def _check_events(path: Path, text: str) -> None:
    """Raise on what makes much of a little: aliases, and levels without end."""
    level = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{path}: aliases are not allowed in an untrusted configuration")
        level += isinstance(event, yaml.CollectionStartEvent)
        level -= isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise ConfigError(f"{path}: nested deeper than {MOST_LEVELS} levels")


def _check_links(folder: Path) -> None:
    """Raise if a file of the folder is really one that lies elsewhere."""
    home = os.path.realpath(_repo(folder) or folder)
    for path in folder.iterdir():
        if os.path.commonpath([home, os.path.realpath(path)]) != home:
            raise LabError(f"{label(folder)}: {path.name} is a symlink out of the folder")


def foreign_code(node: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a configuration names that is not ours: where, and what."""
    leaves = tree_leaves({k: node.get(k) for k in ("workflow", "buffers")})
    # the folder of a run_replay is data: nothing in it is run
    named = (
        (k.replace("/", "."), v) for k, v in leaves if isinstance(v, str) and not k.endswith("/run")
    )
    found = [(k, repr(v)) for k, v in named if ("." in v or ":" in v) and not v.startswith(OURS)]
    env = node.get("env")
    if isinstance(env, dict):
        usual = EnvConfig()
        asked = (env.get(k, getattr(usual, k)) for k in ("suite", "id", "options"))
        if odd := foreign(*asked):
            found.append(("env", odd))
    return [(one_line(where), one_line(what)) for where, what in found]
