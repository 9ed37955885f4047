"""Numbers as a person reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PLAIN = re.compile(r"[\w./:+-]+")
OTHER = re.compile(r"[+-]?[\d._]+(e[+-]?\d+)?|[+-]?inf|nan|true|false|null", re.IGNORECASE)
"""Strings that would be read as a number, a boolean or null if they were not quoted."""


def duration(seconds: float | None) -> str:
    """Return seconds in a unit that reads well, or a dash."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number(value: float | None) -> str:
    """Return a number in few digits, or a dash."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def text_of(value: Any) -> str:
    """Return a value as an override writes it: `true`, `null`, `[64,64]`, quoted where needed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(text_of(v) for v in value) + "]"
    text = str(value)
    if not isinstance(value, str) or (PLAIN.fullmatch(text) and not OTHER.fullmatch(text)):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
