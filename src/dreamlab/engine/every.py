"""When something is due that happens every so often."""

from __future__ import annotations


class Every:
    """Fires once whenever a count passes the next multiple of `period`; 0 never fires."""

    def __init__(self, period: int) -> None:
        self.period, self.last = period, 0

    def passed(self, count: int) -> bool:
        """Tell whether it would fire."""
        return self.period > 0 and count // self.period > self.last // self.period

    def __call__(self, count: int) -> bool:
        fires = self.passed(count)
        self.last = count if fires else self.last
        return fires
