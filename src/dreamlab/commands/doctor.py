"""`dreamlab doctor`: check the installation and hardware."""

from __future__ import annotations

from dreamlab.commands.arguments import verb
from dreamlab.commands.printing import tell_findings


@verb("doctor", "dreamlab doctor")
def command() -> int:
    """Check the installation: versions, devices, memory, environment suites."""
    from dreamlab.envs.doctor import doctor

    tell_findings(doctor())
    return 0
