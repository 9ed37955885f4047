"""Readers for each file type in a run folder: text, JSON, YAML, JSONL, a pointer.

An unusable file raises a one-line error with its name and the reason: missing, a folder, a pipe,
unreadable, not UTF-8, truncated, too deeply nested. In a JSONL file only corrupted lines are
skipped, and counted.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from dreamlab.core.errors import ConfigError, LabError

Record = dict[str, Any]
Check = Callable[[Record], bool]
"""Return whether a record has the fields that its readers need."""

MOST_DEPTH = 64
"""Deeper nesting was not written by dreamlab and could overflow the stack."""
TAIL_BYTES = 1 << 16
LONGEST_NAME = 100
LARGEST = 1e300
"""Larger numbers are corruption, and their sums would overflow."""

EXPONENT = re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$")
"""Numbers that YAML 1.1 parses as text."""


class FileError(LabError):
    """A file is corrupted, inaccessible, or of the wrong type."""

    def __init__(self, path: Path, reason: str) -> None:
        gap = "" if reason[:1] in (" ", ",", ":") else " "
        super().__init__(f"{path}{gap}{reason}")
        self.path, self.reason = path, reason.lstrip(" ,:")


class MissingFileError(FileError):
    """The file does not exist."""


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a finite number small enough for all calculations."""
    return type(value) in (int, float) and -LARGEST < value < LARGEST


# -- whole files ----------------------------------------------------------------------------------


def read_bytes(path: Path, start: int = 0) -> bytes:
    """Return a file's bytes from `start` on."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block forever
            raise FileError(path, "is not a file")
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(path, "does not exist") from None
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None


def read_text(path: Path) -> str:
    """Return a file's text."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise FileError(path, f"is not UTF-8 text: byte {error.start} cannot be read") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    text = read_text(path)
    try:
        node = _parse(text)
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"is not valid JSON: {_one_line(error)}") from None
    if not isinstance(node, dict):
        raise FileError(path, f"contains {_kind(node)}, not an object")
    return node


def read_pointer(path: Path) -> str | None:
    """Return the name in a pointer file; None if the file does not exist."""
    try:
        name = read_text(path).strip()
    except MissingFileError:
        return None
    plain = name.isprintable() and "/" not in name and len(name) <= LONGEST_NAME
    if not name or not plain or name in (".", ".."):
        raise FileError(path, "does not contain a name")
    return name


def _parse(text: str) -> Any:
    """Parse JSON text; raise `ValueError` if it is unusable."""
    node = json.loads(text)
    if text.count("[") + text.count("{") > MOST_DEPTH and _depth_beyond(node, MOST_DEPTH):
        raise ValueError("it is nested too deeply")
    return _encodable(node) if "\\ud" in text.lower() else node


def _depth_beyond(node: Any, most: int) -> bool:
    level = [node]
    for _ in range(most):
        level = [v for n in level for v in _inner(n)]
    return bool(level)


def _inner(node: Any) -> list[Any]:
    return [*node.values()] if isinstance(node, dict) else node if isinstance(node, list) else []


def _encodable(node: Any) -> Any:
    """Replace lone surrogates in a tree, which JSON allows but which cannot be printed."""
    if isinstance(node, dict):
        return {_encodable(k): _encodable(v) for k, v in node.items()}
    if isinstance(node, list):
        return [_encodable(v) for v in node]
    return node.encode(errors="replace").decode() if isinstance(node, str) else node


def _kind(node: Any) -> str:
    names = {list: "a list", str: "text", bool: "a boolean", type(None): "nothing"}
    return names.get(type(node), "a number")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


# -- YAML -----------------------------------------------------------------------------------------


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file with string keys; nothing in it is executed."""
    text = read_text(path)
    try:
        return parse_yaml(text.removeprefix("\ufeff"), str(path), fast=True)
    except ConfigError as error:
        raise FileError(path, str(error).removeprefix(str(path))) from None


def parse_yaml(text: str, where: str, fast: bool = False) -> dict[str, Any]:
    """Parse a YAML mapping; raise an error with `where` if it is not plain YAML.

    The fast parser is stricter about hand-written input: `{a:{b: 1}}` needs a space.
    """
    import yaml

    from dreamlab.core.strict_yaml import check_yaml, explain

    loader = _yaml_loader(fast and yaml.__with_libyaml__)
    check_yaml(text, where, loader)
    try:
        node = yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}{explain(error)}") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        raise ConfigError(f"{where} is not valid YAML: {_one_line(error)}") from None
    return {str(k): v for k, v in node.items()}


@cache
def _yaml_loader(fast: bool) -> Any:
    """Return a loader that parses scalars like OmegaConf, which writes these files.

    `1e-3` is a number, and a date is text.
    """
    import yaml

    base: Any = yaml.CSafeLoader if fast else yaml.SafeLoader
    loader: Any = type("Loader", (base,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789."))
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in loader.yaml_implicit_resolvers.items()
    }
    return loader


# -- JSONL ----------------------------------------------------------------------------------------


@dataclass
class Lines:
    """The records of a JSONL file, and a count of invalid lines."""

    records: list[Record] = field(default_factory=list[Record])
    damaged: int = 0
    """Skipped lines, without an incomplete last line, which may still be being written."""
    end: int = 0
    """Byte offset of the end of the last complete line."""

    def told(self, path: Path) -> list[str]:
        """Return a sentence about corrupted lines, if any."""
        plural = "" if self.damaged == 1 else "s"
        return [f"{path}: {self.damaged} corrupted line{plural} skipped"] if self.damaged else []


def read_jsonl(path: Path, check: Check) -> Lines:
    """Return the records of a whole file; none if it does not exist yet."""
    try:
        data = read_bytes(path)
    except MissingFileError:
        return Lines()
    found = _lines(data, check)
    if rest := data[found.end :]:
        last = _record(rest, check)
        found.records += [last] if last is not None else []
        found.damaged += last is None and not rest.startswith(b"{")
    return found


def read_lines(path: Path, check: Check, start: int = 0) -> Lines:
    """Return the records in complete lines after byte `start`; none if there is no file yet."""
    try:
        found = _lines(read_bytes(path, start), check)
    except MissingFileError:
        return Lines(end=start)
    return replace(found, end=start + found.end)


def _lines(data: bytes, check: Check) -> Lines:
    end = data.rfind(b"\n") + 1
    found = [_record(line, check) for line in data[:end].split(b"\n") if line]
    records = [r for r in found if r is not None]
    return Lines(records, len(found) - len(records), end)


def read_tail(path: Path, check: Check) -> Record:
    """Return the latest value of every key, reading only the end of the file."""
    try:
        data = read_bytes(path, max(0, size_of(path) - TAIL_BYTES))
    except MissingFileError:
        return {}
    newest: Record = {}
    for line in data.split(b"\n"):  # the first and last line may be incomplete
        newest |= _record(line, check) or {}
    return newest


def _record(line: bytes, check: Check) -> Record | None:
    try:
        found = _parse(line.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and check(found) else None


class Tail:
    """Reads a growing JSONL file; each call parses only what was appended since the last."""

    def __init__(self, path: Path, check: Check) -> None:
        self.path, self.check = path, check
        self.lines = Lines()
        self.problem: str | None = None
        """Why the last read returned nothing."""

    def read(self) -> list[Record]:
        """Return all complete records; reread a file that was truncated (by a resume)."""
        self.problem, lines = None, self.lines
        try:
            if size_of(self.path) < lines.end:
                lines = self.lines = Lines()
            added = read_lines(self.path, self.check, lines.end)
        except FileError as error:
            self.problem = str(error)
            return lines.records
        lines.end = added.end
        lines.records += added.records
        lines.damaged += added.damaged
        return lines.records


def size_of(path: Path) -> int:
    """Return a file's size in bytes; 0 if unknown."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
