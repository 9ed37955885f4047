"""How options lie on top of each other, in files and on the command line alike: one rule.

Mappings merge key by key. Naming a class, by a `_target_` or by its name alone, starts over: what
was said of that part before is forgotten. Options that follow are those of the class that is named.
Hydra by itself would keep the options of another class, and lose a name when options follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, OverrideType
from hydra.types import RunMode
from omegaconf import OmegaConf

SECTIONS = ("workflow", "buffers")
"""Where parts are."""


def lay(below: Any, above: Any) -> Any:
    """Return what `above` makes of the value that is `below` it."""
    if not isinstance(above, dict):
        return above
    if isinstance(below, list) and all(k.isdecimal() and int(k) < len(below) for k in above):
        return [lay(v, above[str(i)]) if str(i) in above else v for i, v in enumerate(below)]
    if "_target_" in above or below is None:
        below = {}
    elif isinstance(below, str):
        below = {"_target_": below}
    below = below if isinstance(below, dict) else {}
    return {**below, **{k: lay(below.get(k), v) for k, v in above.items()}}


def sections(
    root: str, overrides: Sequence[str], parsed: Sequence[Override], folders: Sequence[Path]
) -> dict[str, Any]:
    """Return the sections with parts as the files that Hydra composes and the overrides make them.

    To be called while Hydra is initialised, when it could compose them; what `${...}` stand for is
    left to it.
    """
    loader = GlobalHydra.instance().config_loader()
    files = loader.compute_defaults_list(root, list(overrides), RunMode.RUN).defaults
    whole: dict[str, Any] = {}
    for file in files:
        whole = lay(whole, _content(file.config_path or "", file.package or "", folders))
    for override in parsed:
        keys = override.key_or_group.split(".")
        if keys[0] not in SECTIONS:
            continue
        if override.type is OverrideType.DEL:
            _remove(whole, keys)
        else:
            whole = lay(whole, _nested(keys, override.value()))
    return {k: whole[k] for k in SECTIONS if k in whole}


def _content(name: str, package: str, folders: Sequence[Path]) -> dict[str, Any]:
    """Return the sections that a file of a folder has; those of Hydra itself are in none."""
    path = next((p for f in folders if (p := f / f"{name}.yaml").is_file()), None)
    if path is None:
        return {}
    node: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)  # numbers as Hydra's
    node = _nested(package.split("."), node) if package else node
    return {k: v for k, v in node.items() if k in SECTIONS}


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    return value


def _remove(node: Any, keys: Sequence[str]) -> None:
    for key in keys[:-1]:
        node = node.get(key) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(keys[-1], None)


__all__ = ["lay", "sections"]
