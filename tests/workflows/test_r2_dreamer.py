"""R2-Dreamer: the loss, and what shapes what."""

from __future__ import annotations

import torch
from tests.helpers import open_loop, run_for

from dreamlab.components.world_models.redundancy import redundancy_loss
from dreamlab.core.config import load
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Spec
from dreamlab.workflows.r2_dreamer import R2Dreamer, R2DreamerConfig, R2Scales


def test_the_loss_wants_matching_entries_that_do_not_repeat_each_other():
    torch.manual_seed(0)
    x = torch.randn(4000, 6)
    assert redundancy_loss(x * 3 + 1, x, 1.0) < 0.05  # scale and shift do not matter
    mixed = x.roll(1, 1)
    assert 11 < redundancy_loss(mixed, x, 1.0) < 13  # six entries missing, six elsewhere
    copies = x[:, :1].expand(-1, 6)
    assert redundancy_loss(copies, copies, 1.0) > 25  # thirty pairs say the same
    by_hand = torch.corrcoef(torch.cat([mixed, x], 1).t())[:6, 6:] * 3999 / 4000
    on = by_hand.diagonal()
    expected = (on - 1).square().sum() + 0.5 * (by_hand.square().sum() - on.square().sum())
    torch.testing.assert_close(redundancy_loss(mixed, x, 0.5), expected, rtol=1e-3, atol=1e-3)


def test_the_loss_that_shapes_states_has_a_weight_of_its_own():
    spec = Spec({"state": ArraySpec((3,))}, ArraySpec((), "int64", classes=3))
    totals = []
    for scales in (R2Scales(), R2Scales(rec=3.0), R2Scales(redundancy=1.05)):
        torch.manual_seed(0)
        agent = R2Dreamer(
            load(R2DreamerConfig, {**R2Dreamer.tiny, "scales": scales}, "workflow"), spec
        )
        no = torch.zeros(4, 6, dtype=torch.bool)
        extras = {"deter": torch.zeros(4, 6, 16).bfloat16(), "stoch": torch.zeros(4, 6, 4).byte()}
        obs, action = {"state": torch.randn(4, 6, 3)}, torch.randint(0, 3, (4, 6))
        batch = Batch(obs, action, torch.randn(4, 6), no, no.clone(), no.clone(), extras)
        totals.append(agent.update_agent(batch, phase=Phase("learn", ("update_agent",)))[0])
    base, drawn, shaped = totals
    close = {"atol": 1e-3, "rtol": 1e-3}
    torch.testing.assert_close(drawn["loss"] - base["loss"], 2 * base["loss/rec/state"], **close)
    torch.testing.assert_close(shaped["loss"] - base["loss"], base["loss/redundancy"], **close)


def test_the_decoder_shapes_nothing_and_the_tokens_are_not_pulled(tmp_path):
    small = ("tiny=true", "buffers.replay.batch=2", "buffers.replay.min_steps=100", "device=cpu")
    loop = open_loop(tmp_path / "r", "+experiment=r2_dreamer_pixels", *small)
    run_for(loop, 12)
    agent, batch = loop.workflow, loop.parts.buffers["replay"].sample()
    start = agent.decompress_latent({k: v[:, 0] for k, v in batch.extras.items()})
    obs = {k: v[:, 1:] for k, v in batch.obs.items()}
    seen = agent.model.observe(obs, batch.action[:, :-1], batch.is_first[:, 1:], start)
    losses, _ = agent.model.losses(seen, obs, batch.reward[:, 1:], batch.is_terminal[:, 1:])
    (drawn,) = (v.mean() for k, v in losses.items() if k.startswith("rec/"))
    cell = list(agent.model.rssm.cell.parameters())
    grads = torch.autograd.grad(drawn, cell, allow_unused=True, retain_graph=True)
    assert all(g is None for g in grads)
    apart = agent.model.decoder.parameters()
    assert any(
        g is not None and g.abs().sum() > 0
        for g in torch.autograd.grad(drawn, list(apart), allow_unused=True, retain_graph=True)
    )
    grads = torch.autograd.grad(losses["redundancy"], cell, retain_graph=True, allow_unused=True)
    assert any(g is not None and g.abs().sum() > 0 for g in grads)
    (pull,) = torch.autograd.grad(losses["redundancy"], seen.tokens, retain_graph=True)
    # tokens are reached through the states only: with those held, nothing pulls them
    held = type(seen)(seen.tokens, seen.latent.detach(), seen.post.detach())
    losses, _ = agent.model.losses(held, obs, batch.reward[:, 1:], batch.is_terminal[:, 1:])
    (direct,) = torch.autograd.grad(losses["redundancy"], seen.tokens, allow_unused=True)
    assert pull.abs().sum() > 0
    assert direct is None
