"""`dreamlab check`: validate an environment."""

from __future__ import annotations

from dreamlab.commands.arguments import check_trust, overrides, trust_code, verb
from dreamlab.commands.printing import tell_findings


@verb(
    "check",
    "dreamlab check env=CartPole-v1",
    "dreamlab check env=my_package:MyEnv-v0",
    "dreamlab check env=dmc env.id=walker_walk",
)
@overrides
@trust_code
def command(overrides: tuple[str, ...], trust_code: bool) -> int:
    """Validate an environment; exit code 1 if it violates the Gymnasium API.

    Creates, resets and steps it: shapes, dtypes, ranges, seeding, episode ends.
    """
    from dreamlab.build import env_config
    from dreamlab.config import compose
    from dreamlab.envs.check import check

    check_trust(overrides, trust_code)
    return tell_findings(check(env_config(compose(overrides))))
