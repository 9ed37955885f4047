"""Errors that users can act on. Each names the place, the fault, and the nearest remedy."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from dreamlab.core.text import one_line


class LabError(Exception):
    """Raised for invalid user input, never for an internal bug."""

    def _render_traceback_(self) -> list[str]:
        """Return the message for a notebook, without our stack trace."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(LabError):
    """The configuration names something that does not exist or does not fit."""


class UnknownOptionError(ConfigError):
    """An option name does not exist; suggests an alternative if known."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.path, self.said = path, text
        self.instead: dict[str, Any] | None = None
        """Equivalent options; None if unknown, empty if there are none."""


class MissingExtraError(LabError):
    """A package that belongs to an optional extra is not installed."""


class CheckpointError(LabError):
    """A checkpoint or run directory cannot be used."""


class EnvError(LabError):
    """An environment breaks the Gymnasium contract or cannot be made."""


class DivergedError(LabError):
    """Training produced a value that is not a finite number."""


class Stopped(KeyboardInterrupt):
    """The user requested an immediate stop; no environment or library raises this."""


def unknown(kind: str, name: str, known: Iterable[str], where: str) -> str:
    """Return the error text for an unknown name, with suggestions."""
    name, names = one_line(name), sorted(map(one_line, known))
    near = get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{where}: there is no {kind} {name!r}.{hint}\n  known: {', '.join(names)}"


def require(module: str, extra: str) -> ModuleType:
    """Import and return `module`, or raise an error that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.split(".")[0]
        if error.name is not None and error.name.split(".")[0] != top:
            raise
        raise MissingExtraError(
            f"{top} is not installed. Install it with: pip install 'dreamlab[{extra}]'"
        ) from None
