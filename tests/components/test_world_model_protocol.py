"""Reports and imagined environments ask nothing of a latent: here it is one number, a sum."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dreamlab.components.world_models.open_loop import Sequences, report
from dreamlab.components.world_models.protocol import map_latent, roll_out
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.envs.imagined import ImaginedEnv
from dreamlab.imagined_suite import RunDreamer

SPEC = Spec({"sum": ArraySpec((1,))}, ArraySpec((1,), low=-1.0, high=1.0))


class Sum(NamedTuple):
    total: Tensor


class Adding:
    """A world that adds up actions; the reward is the sum."""

    Latent, bias = Sum, 0.0
    decoded = SPEC.obs

    def initial(self, num: int, device: Any) -> Sum:
        return Sum(torch.zeros(num, 1))

    def observe(self, obs: Any, action: Any, is_first: Any, state: Any) -> Any:
        return SimpleNamespace(latent=Sum(obs["sum"]))

    def imagine(self, start: Sum, policy: Any, horizon: int, noise: Any = None) -> Any:
        def advance(z: Sum, chance: Tensor) -> tuple[Sum, Tensor]:
            action = policy(z)
            return map_latent(lambda x: x + action + self.bias, z), action

        return roll_out(advance, start, policy, torch.zeros(horizon))

    def predict(self, z: Sum) -> dict[str, Any]:
        return {"obs": {"sum": z.total}, **self.predict_reward(z)}

    def predict_reward(self, z: Sum) -> dict[str, Tensor]:
        return {"reward": z.total[..., 0], "cont": self.discount_of(z)}

    def discount_of(self, z: Sum) -> Tensor:
        return torch.ones_like(z.total[..., 0])


class Agent(WorldModelWorkflow):
    model, spec = Adding(), SPEC

    def policy(self, latent: Sum) -> Tensor:
        return torch.full_like(latent.total, 0.5)


def sequences() -> Sequences:
    action = torch.rand(3, 8, 1)
    total = action.cumsum(1)
    no = torch.zeros(3, 8, dtype=torch.bool)
    return Sequences({"sum": total}, action, total[..., 0], no, no, Sum(torch.zeros(3, 1)))


def test_an_open_loop_report_works_with_any_latent():
    seq = sequences()
    seen = report(Adding(), seq, Agent().policy)
    assert seen.metrics["openloop/sum_h4"] < 1e-10
    assert seen.metrics["openloop/reward_h4"] < 1e-5
    np.testing.assert_allclose(
        seen.curves["openloop/sum"].dream, seen.curves["openloop/sum"].truth, rtol=1e-5
    )
    wrong = Adding()
    wrong.bias = 0.1
    metrics = report(wrong, seq, Agent().policy).metrics
    assert float(metrics["openloop/sum_h4"]) > float(metrics["openloop/sum_h1"]) > 1e-3


def test_a_policys_state_holds_the_latents_fields():
    agent, z = Agent(), Sum(torch.ones(2, 1))
    state = agent.pack_state(z, torch.zeros(2, 1))
    assert sorted(state) == ["action", "total"]
    assert agent.unpack_state(state) == z


def test_an_imagined_environment_works_with_any_latent():
    env = ImaginedEnv(RunDreamer(Agent(), SPEC), lambda rng: Sum(torch.zeros(1, 1)), length=3)
    env.reset(seed=0)
    totals = [env.step(np.array([0.25], np.float32)) for _ in range(3)]
    assert [float(obs["sum"][0]) for obs, *_ in totals] == [0.25, 0.5, 0.75]
    assert [reward for _, reward, *_ in totals] == [0.25, 0.5, 0.75]
    assert totals[-1][3]
