"""Validates untrusted YAML: errors are one line, never a hang."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from dreamlab.core.errors import ConfigError

MOST_BYTES = 2**20
MOST_DEPTH = 50
MOST_VALUES = 300_000
"""Maximum number of values of a file with all aliases expanded."""


@dataclass
class _Open:
    """A mapping or list being read."""

    is_mapping: bool
    anchor: str | None
    line: int
    size: int = 1
    at_key: bool = True
    keys: dict[str, int] = field(default_factory=dict[str, int])


def check_yaml(text: str, where: str, loader: Any = yaml.SafeLoader) -> None:
    """Raise if the text is not one plain YAML document.

    Rejects syntax errors, duplicate keys, tags, aliases that contain themselves or expand too much,
    and deep nesting. It reads events only, so nothing is ever expanded.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"{where}: more than {MOST_BYTES // 2**20} MiB is too large for a configuration"
        )
    try:
        _Reader(where).read(yaml.parse(text, loader))
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}{explain(error)}") from None


def explain(error: yaml.YAMLError) -> str:
    """Return the fault in a text and its position, on one line."""
    mark: Any = getattr(error, "problem_mark", None)
    at = f" (line {mark.line + 1})" if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return f" is not valid YAML: {' '.join(str(problem).split())}{at}"


class _Reader:
    """Walks through the events of a document and tracks sizes and keys."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[_Open] = []
        self.sizes: dict[str, int] = {}
        self.total = 0

    def read(self, events: Iterator[Any]) -> None:
        """Check every event; raise at the first that is rejected."""
        documents, empty = 0, True
        for event in events:
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                raise self.fault(event, "a second document starts here; only one is allowed")
            if isinstance(event, yaml.CollectionEndEvent):
                self.close()
            elif isinstance(event, yaml.NodeEvent):
                if empty and not isinstance(event, yaml.MappingStartEvent):
                    raise self.fault(event, "expected options as `key: value`")
                empty = False
                self.node(event)
        if empty:
            raise ConfigError(f"{self.where}: is empty")

    def fault(self, event: Any, text: str) -> ConfigError:
        return ConfigError(f"{self.where}, line {event.start_mark.line + 1}: {text}")

    def node(self, event: Any) -> None:
        """Process a scalar, an alias, or the start of a mapping or a list."""
        if getattr(event, "tag", None) not in (None, "!"):
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise self.fault(event, f"the tag {tag} is not allowed in a configuration")
        self.key(event)
        size = self.size_of(event)
        if isinstance(event, yaml.CollectionStartEvent):
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            self.stack.append(_Open(is_mapping, event.anchor, event.start_mark.line))
            if len(self.stack) > MOST_DEPTH:
                raise self.fault(event, f"nested deeper than {MOST_DEPTH} levels")
        elif isinstance(event, yaml.ScalarEvent) and event.anchor:
            self.sizes[event.anchor] = 1
        self.total += size
        for outer in (
            self.stack[:-1] if isinstance(event, yaml.CollectionStartEvent) else self.stack
        ):
            outer.size += size
        if self.total > MOST_VALUES:
            raise self.fault(event, f"more than {MOST_VALUES:,} values up to here")

    def key(self, event: Any) -> None:
        """Record a mapping's key; raise if it is a duplicate."""
        if not self.stack or not self.stack[-1].is_mapping:
            return
        top = self.stack[-1]
        if top.at_key:
            if not isinstance(event, yaml.ScalarEvent):
                raise self.fault(event, "a key must be a string")
            if event.value in top.keys:
                first = top.keys[event.value]
                raise self.fault(event, f"the key {event.value!r} is a duplicate of line {first}")
            top.keys[event.value] = event.start_mark.line + 1
        top.at_key = not top.at_key

    def size_of(self, event: Any) -> int:
        """Return the number of values in a node."""
        if not isinstance(event, yaml.AliasEvent):
            return 1
        if any(o.anchor == event.anchor for o in self.stack):
            raise self.fault(event, f"the alias *{event.anchor} contains itself")
        if event.anchor not in self.sizes:
            raise self.fault(event, f"there is no anchor &{event.anchor} before this alias")
        return self.sizes[event.anchor]

    def close(self) -> None:
        """Close the innermost mapping or list."""
        done = self.stack.pop()
        if done.anchor:
            self.sizes[done.anchor] = done.size


__all__ = ["check_yaml", "explain"]
