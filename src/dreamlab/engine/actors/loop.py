"""The training loop of a run with actors: evaluation does not hold it up."""

from __future__ import annotations

from dreamlab.engine.actors.options import NOT_EXACT
from dreamlab.engine.orchestrator import Orchestrator


class ActorLoop(Orchestrator):
    """Trains while actors collect."""

    def run(self) -> str:
        """Train until the end or an interruption; say that this cannot be repeated exactly."""
        self.run_log.update(exact_resume=False, exact_resume_reason=NOT_EXACT)
        return super().run()
