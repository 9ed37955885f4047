"""Communication between the learner and its actors: one protocol, one file per implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dreamlab.engine.actors.blocks import Block
from dreamlab.engine.actors.worker import Failure, Request


@dataclass(frozen=True)
class Gone:
    """An actor that has ended, and why."""

    why: str


Event = Block | Failure | Gone


class Transport(Protocol):
    """Starts actors, requests blocks and publishes weights; it makes no decisions."""

    def start(self, index: int, generation: int) -> None:
        """Start actor `index`; each `generation` has its own random numbers."""
        ...

    def publish(self, version: int, payload: bytes) -> None:
        """Publish newer weights to all actors, also to later ones, without waiting."""
        ...

    def ask(self, index: int, request: Request, blocks: int) -> None:
        """Request more blocks from an actor, without waiting; requests are served in order."""
        ...

    def events(self, timeout_s: float) -> list[tuple[int, Event]]:
        """Return the events of all actors, waiting at most this long for one."""
        ...

    def close(self) -> None:
        """Stop all actors, within seconds."""
        ...
