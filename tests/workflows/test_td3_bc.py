"""TD3+BC: targets and losses against the formulas of the papers written out."""

from __future__ import annotations

import torch
from tests.workflows.offline import batch_of, flat, make

from dreamlab.components.critics.transitions import chunk_transitions
from dreamlab.core.phase import Phase
from dreamlab.core.types import Mode
from dreamlab.workflows.td3_bc import TD3BC

PHASE = Phase("learn", ("update_controller",))
SMALL = {"actor": {"hidden": (8, 8)}, "critic": {"hidden": (8, 8)}}


def test_the_target_is_the_lesser_value_of_a_smoothed_action():
    td3, batch = make(TD3BC, **SMALL), batch_of()
    t = chunk_transitions(batch, 0.9, 1)
    torch.manual_seed(5)
    got = td3.bellman_target(t)
    torch.manual_seed(5)
    ahead = batch.obs["state"][:, 1]
    action = td3.target_actor({"state": ahead})
    noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)
    q1, q2 = td3.target_critic.values(ahead, (action + noise).clamp(-1, 1))
    cont = torch.tensor([0.0, 1, 1, 1, 1, 1])
    torch.testing.assert_close(got, batch.reward[:, 1] + 0.9 * cont * torch.minimum(q1, q2))


def test_the_actor_weighs_values_against_imitation():
    td3, batch = make(TD3BC, **SMALL), batch_of()
    t = chunk_transitions(batch, 0.9, 1)
    loss, distance = td3.actor_loss(t)
    action = td3.actor(t.obs)
    q = td3.critic.values(t.obs["state"], action)[0]
    expected = ((action - batch.action[:, 0]) ** 2).mean()
    torch.testing.assert_close(distance, expected.detach())
    torch.testing.assert_close(loss, -2.5 / q.abs().mean().detach() * q.mean() + expected)
    plain, _ = make(TD3BC, **SMALL, imitation=0.0).actor_loss(t)
    torch.testing.assert_close(plain, loss - expected)


def test_actor_and_targets_move_every_second_update():
    td3 = make(TD3BC, **SMALL)
    moves = []
    for i in range(4):
        before = flat(td3.actor), flat(td3.target_critic), flat(td3.critic)
        td3.update_controller(batch_of(seed=i), phase=PHASE)
        after = flat(td3.actor), flat(td3.target_critic), flat(td3.critic)
        moves.append([not torch.equal(a, b) for a, b in zip(before, after, strict=True)])
    assert moves == [[False, False, True], [True, True, True]] * 2


def test_it_explores_by_noise_and_only_while_collecting():
    td3, obs = make(TD3BC, **SMALL), {"state": torch.randn(500, 3)}
    first = torch.zeros(500, dtype=torch.bool)
    still = td3.decide(obs, first, (), Mode.EVAL).action
    assert torch.equal(still, td3.decide(obs, first, (), Mode.EVAL).action)
    torch.manual_seed(0)
    noise = (td3.decide(obs, first, (), Mode.TRAIN).action - still).detach()
    assert 0.08 < float(noise.std()) < 0.12
