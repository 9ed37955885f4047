"""`dreamlab doctor`: what works on this machine."""

from __future__ import annotations

from dreamlab.commands.arguments import verb
from dreamlab.commands.printing import tell_findings


@verb("doctor", "dreamlab doctor")
def command() -> int:
    """Tell what works on this machine: versions, devices, memory, suites of environments."""
    from dreamlab.envs.doctor import doctor

    tell_findings(doctor())
    return 0
