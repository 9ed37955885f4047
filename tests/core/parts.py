"""A package with parts of its own, as a user would write it."""

from __future__ import annotations

from dataclasses import dataclass

from dreamlab.core.limits import Share, Width

PARTS = {"plain": "tests.core.parts.Plain", "configured": "tests.core.parts.Configured"}


class Plain:
    """Takes its options as arguments."""

    def __init__(self, size: int, depth: int = 1) -> None:
        self.size, self.depth = size, depth


@dataclass(frozen=True)
class ConfiguredConfig:
    """The options of Configured."""

    width: int = 3
    act: str = "relu"


class Configured:
    """Takes its options as a config."""

    Config = ConfiguredConfig

    def __init__(self, config: ConfiguredConfig, size: int) -> None:
        self.config, self.size = config, size


class Limited:
    """Takes its options as arguments that state their limits."""

    def __init__(self, size: int, rate: Share = 0.5, depth: Width = 1) -> None:
        self.size, self.rate, self.depth = size, rate, depth
