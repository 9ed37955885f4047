"""Formatting of numbers for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PLAIN = re.compile(r"[\w./:+-]+")
OTHER = re.compile(r"[+-]?[\d._]+(e[+-]?\d+)?|[+-]?inf|nan|true|false|null", re.IGNORECASE)
"""Strings that YAML would parse as a number, a boolean or null unless quoted."""


def duration(seconds: float | None) -> str:
    """Format seconds in a readable unit, or as a dash."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number(value: float | None) -> str:
    """Format a number with few digits, or as a dash."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def text_of(value: Any) -> str:
    """Format a value as in an override: `true`, `null`, `[64,64]`, quoted where needed."""
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
