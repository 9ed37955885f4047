"""Numbers as a person reads them."""

from __future__ import annotations


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
