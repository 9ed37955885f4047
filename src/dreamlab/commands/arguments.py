"""What the verbs' command lines share: numbers with limits, and errors of one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from dreamlab.core.config import convert
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.limits import Natural, Positive, PositiveInt, Seed


class Parser(argparse.ArgumentParser):
    """Reads the arguments of one verb; what it cannot read is a LabError, as everywhere."""

    def error(self, message: str) -> NoReturn:
        raise LabError(f"{self.prog.removeprefix('dreamlab ')}: {message}")


def number(hint: Any) -> Callable[[str], Any]:
    """Return a reader of numbers with the type and the limits of `hint`: 500_000, 5e5."""

    def read(text: str) -> Any:
        try:
            return convert(_number_of(text), hint, "")
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(": ")) from None

    return read


def _number_of(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


positive_int = number(PositiveInt)
natural = number(Natural)
seed = number(Seed)
positive = number(Positive)

__all__ = ["Parser", "natural", "number", "positive", "positive_int", "seed"]
