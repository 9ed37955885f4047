"""What a run says if its episodes terminate and its workflow cannot learn that they do."""

from __future__ import annotations

from collections.abc import Callable

from dreamlab.core.types import Array, Step
from dreamlab.engine.observer import Observer


class TellsUnlearntEnds(Observer):
    """Says it at the first episode that terminates."""

    def __init__(self, name: str, remedy: str, say: Callable[[str], None]) -> None:
        self.name, self.remedy, self.say = name, remedy, say
        self.told = False

    def ticked(self, step: Step, action: Array, ended: int) -> None:
        if ended and not self.told and step.is_terminal.any():
            self.told = True
            self.say(
                f"an episode has terminated, but {self.name} expects rewards to go on after it: "
                f"{self.remedy}"
            )
