"""How the learner and its actors reach each other: one protocol, a file for each way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dreamlab.engine.actors.blocks import Block
from dreamlab.engine.actors.worker import Failure, Request


@dataclass(frozen=True)
class Gone:
    """An actor that is no more, and why."""

    why: str


Event = Block | Failure | Gone


class Transport(Protocol):
    """Starts actors, asks them for blocks and gives them weights; it decides nothing."""

    def start(self, index: int, generation: int) -> None:
        """Start actor `index`; a later `generation` of it has other random numbers."""
        ...

    def publish(self, version: int, payload: bytes) -> None:
        """Give all actors newer weights, also those that start later; do not wait for them."""
        ...

    def ask(self, index: int, request: Request) -> None:
        """Ask an actor for one block more; requests are served in order."""
        ...

    def events(self, timeout_s: float) -> list[tuple[int, Event]]:
        """Return what came from which actor, waiting for something at most this long."""
        ...

    def close(self) -> None:
        """End all actors, within seconds."""
        ...
