"""Steps survive the way from env to batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dreamlab.core.config import load
from dreamlab.core.types import Decision, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow
from dreamlab.data.replay import Replay, ReplayConfig
from dreamlab.data.rollout import Rollout, RolloutConfig
from dreamlab.data.source import BufferContext
from dreamlab.data.store import Store
from dreamlab.engine.collector import Collector
from dreamlab.envs.vector import EnvConfig, Envs


class Restless(Workflow[None]):
    """Acts at random, and keeps its own count of steps as state and as extra."""

    def build(self, spec: Spec) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def initial_state(self, num_envs: int) -> Tree:
        return torch.zeros(num_envs)

    def decide(self, obs: Obs, is_first: torch.Tensor, state: Tree, mode: Mode) -> Decision:
        count = torch.where(is_first.clone(), 0, state)
        action = torch.rand(len(count), 1) * 2 - 1
        return Decision(action, count + 1, {"count": count})


def collected(buffer: str, vector: str = "sync") -> Any:
    config = load(EnvConfig, {"suite": "dummy", "id": "counting", "num_envs": 3}, "env")
    config = load(EnvConfig, {**vars(config), "vector": vector, "options": {"length": 4}}, "env")
    envs = Envs(config, seed=0)
    place = BufferContext(envs.spec, envs.num_envs)
    made: Store = (
        Replay(ReplayConfig(capacity=150, batch=256, length=9), place)
        if buffer == "replay"
        else Rollout(RolloutConfig(length=200), place)
    )
    Collector(envs, Restless(None, envs.spec), seed=0).collect(200, made)
    envs.close()
    return made.sample()


@pytest.mark.parametrize(
    ("buffer", "vector"), [("replay", "sync"), ("rollout", "sync"), ("replay", "async")]
)
def test_steps_survive_the_way_from_env_to_batch(buffer: str, vector: str):
    batch = collected(buffer, vector)
    count, follows = batch.obs["state"][..., 0], ~batch.is_first[:, 1:]
    assert follows.any()
    assert (~follows).any()
    assert (count[:, 1:] == count[:, :-1] + 1)[follows].all()  # consecutive within an episode
    assert (count[:, 1:] == 0)[~follows].all()  # and from zero after a seam
    assert (batch.reward[:, 1:] == batch.action[:, :-1, 0])[follows].all()  # r[t+1] answers a[t]
    assert (batch.reward[:, 1:] == 0)[~follows].all()  # no reward comes with a first step
    assert batch.is_last.equal(count == 4)
    assert not batch.is_terminal.any()  # cut off, not over
    seen = batch.extras["count"] if buffer == "replay" else batch.extras["count"][:, :-1]
    assert seen.equal(count[:, : seen.shape[1]])  # the policy's state belongs to its step
