"""Options by their dotted names: as one table, what differs between tables, what does not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WITHOUT_EFFECT = (
    "run", "log", "watch", "checkpoint", "report", "schema", "shrunk", "env.step_timeout_s",
)  # fmt: skip
"""Options that affect where a run is stored and how it is monitored, but not its results."""
ABSENT = "-"


def counts(name: str, *others: str) -> bool:
    """Return whether an option has an effect; those below `others` shall have none either."""
    return not f"{name}.".startswith(tuple(f"{o}." for o in (*WITHOUT_EFFECT, *others)))


def flatten(node: Any, path: str = "") -> dict[str, Any]:
    """Return every leaf by its path (`workflow.gamma`); a list of plain values is one leaf."""
    if isinstance(node, list | tuple) and any(isinstance(v, dict | list | tuple) for v in node):
        node = dict(enumerate(node))
    if not isinstance(node, dict) or not (node or not path):
        return {path: node}
    out: dict[str, Any] = {}
    for key, value in node.items():
        out |= flatten(value, f"{path}.{key}" if path else str(key))
    return out


def differences(tables: Sequence[Mapping[str, Any]], absent: Any = ABSENT) -> dict[str, list[Any]]:
    """Return the options that are not the same in all tables, with the value that each has."""
    keys = sorted({k for table in tables for k in table})
    rows = {key: [table.get(key, absent) for table in tables] for key in keys}
    return {key: row for key, row in rows.items() if any(v != row[0] for v in row)}
