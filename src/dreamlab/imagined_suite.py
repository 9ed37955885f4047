"""The dream of a trained run as an environment: `env.suite=imagined env.id=<run directory>`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab import training
from dreamlab.components.world_models.protocol import map_latent
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import PositiveInt
from dreamlab.core.readers import read_pointer
from dreamlab.core.tree import tree_map
from dreamlab.core.types import Array, ArraySpec, Mode, Spec
from dreamlab.envs.imagined import ImaginedEnv
from dreamlab.envs.vector import Envs


class RunDreamer:
    """A run's world model, one state at a time."""

    def __init__(self, agent: WorldModelWorkflow, spec: Spec) -> None:
        self.agent, self.spec = agent, spec
        if shows_latents(agent):
            (dim,) = agent.model.initial(1, torch.device("cpu")).z.shape[1:]
            self.spec = replace(spec, obs={"z": ArraySpec((dim,), "float32")})

    @torch.no_grad()
    def dream_step(self, state: Any, action: Tensor, generator: torch.Generator) -> Any:
        """Return the state after an action, its chance drawn from `generator` alone."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            states, _ = self.agent.imagine(1, state, lambda _: action)
        return map_latent(lambda x: x[:, -1], states)

    @torch.no_grad()
    def dream_view(self, state: Any) -> tuple[dict[str, Array], float, float]:
        """Return the observation, reward and chance of going on that the model sees in a state."""
        seen = self.agent.view(state)
        if shows_latents(self.agent):
            seen["obs"] = {"z": state.z.clone()}  # the start of an episode is kept
        obs = {k: _as_observed(v[0], self.spec.obs[k].dtype) for k, v in seen["obs"].items()}
        return obs, float(seen["reward"][0]), float(seen["cont"][0])


def shows_latents(agent: WorldModelWorkflow) -> bool:
    """Return whether the model has no decoder and one latent vector: its dreams show that."""
    return not agent.model.decoded and "z" in agent.model.Latent._fields


def _as_observed(value: Tensor, dtype: str) -> Array:
    array = value.numpy()
    return np.clip(array * 255, 0, 255).astype(np.uint8) if dtype == "uint8" else array


def visited(trained: training.Trained, agent: WorldModelWorkflow, num: int) -> list[Any]:
    """Return latent states that the run's policy passes in its real environment."""
    workflow = trained.workflow
    latents: list[Any] = []
    envs = Envs(trained.config.env, seed=trained.config.seed + 1)
    try:
        envs.normalizer.set_state(trained.statistics)
        envs.normalizer.frozen = True
        step, state = envs.reset(), workflow.initial_state(envs.num_envs)
        while len(latents) < num:
            decision = workflow.act(step, state, Mode.TRAIN)
            state = decision.state
            for i in np.flatnonzero(~step.is_last):
                one = tree_map(lambda x, i=i: x[i : i + 1], state)
                latents.append(agent.unpack_state(one))
            step = envs.step(decision.action.cpu().numpy())
    finally:
        envs.close()
    return latents[:num]


@lru_cache(maxsize=4)
def _load(task: str, starts: int, trust_code: bool, newest: str) -> tuple[RunDreamer, list[Any]]:
    """Return a run's dreamer and its starts; environments of one run share them."""
    trained = training.load_policy(Path(task), trust_code=trust_code)
    workflow = trained.workflow.eval()
    if not isinstance(workflow, WorldModelWorkflow):
        name = type(workflow).__name__
        raise ConfigError(f"env.id: {task} is a run of {name}, which has no world model")
    blind = sorted(workflow.spec.obs.keys() - workflow.model.decoded.keys())
    if blind and not shows_latents(workflow):
        name = type(workflow).__name__
        raise ConfigError(
            f"env.id: {task} is a run of {name}, whose world model does not reconstruct "
            f"{blind[0]!r}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trained.config.seed)
        return RunDreamer(workflow, workflow.spec), visited(trained, workflow, starts)


def make(
    task: str, length: PositiveInt = 64, starts: PositiveInt = 512, trust_code: bool = False
) -> ImaginedEnv:
    """Return the dream of the run in folder `task`; episodes start in `starts` real states.

    A policy from a hub that names other code than this package's is dreamt of only if that is
    trusted.
    """
    latest = Path(task) / "checkpoints" / "latest"
    newest = read_pointer(latest) or ""
    dreamer, states = _load(task, starts, trust_code, newest)
    return ImaginedEnv(dreamer, lambda rng: states[rng.integers(len(states))], length)
