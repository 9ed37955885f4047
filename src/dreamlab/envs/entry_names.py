"""Names of the numbers in an observation, for tasks whose makers have documented them."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym

from dreamlab.envs.vector import EnvConfig

LANDER = (
    "x", "y", "x velocity", "y velocity", "angle", "angular velocity", "left leg contact",
    "right leg contact",
)  # fmt: skip
CAR = ("position", "velocity")
# as Gymnasium's pages list them, by the class that is the task's entry point
GYM: dict[str, Sequence[str]] = {
    "CartPoleEnv": ("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    "MountainCarEnv": CAR,
    "Continuous_MountainCarEnv": CAR,
    "PendulumEnv": ("cos angle", "sin angle", "angular velocity"),
    "AcrobotEnv": (
        "cos angle 1", "sin angle 1", "cos angle 2", "sin angle 2", "angular velocity 1",
        "angular velocity 2",
    ),
    "LunarLander": LANDER,
}  # fmt: skip
# the Control Suite gives several arrays; their names are keys of the observation
DMC: dict[str, dict[str, Sequence[str]]] = {
    "cartpole": {
        "position": ("cart position", "cos pole angle", "sin pole angle"),
        "velocity": ("cart velocity", "pole angular velocity"),
    },
    "pendulum": {
        "orientation": ("cos angle", "sin angle"),
        "velocity": ("angular velocity",),
    },
    "point_mass": {"position": ("x", "y"), "velocity": ("x velocity", "y velocity")},
}


def entry_names(config: EnvConfig) -> dict[str, Sequence[str]]:
    """Return the names of entries by key of the observation; nothing where they are not known."""
    if config.frame_stack != 1:
        return {}
    if config.suite == "dmc":
        domain = next((d for d in DMC if config.id.startswith(f"{d}_")), "")
        return {**DMC.get(domain, {})}
    if config.suite != "gym" or config.id not in gym.registry:
        return {}
    found = GYM.get(str(gym.spec(config.id).entry_point).rpartition(":")[2])
    return {"state": found} if found else {}
