"""What recorded updates are made of, as far as it can be seen without a GPU."""

from __future__ import annotations

import copy

import pytest
import torch

from dreamlab.core.errors import LabError
from dreamlab.engine import capture
from dreamlab.engine.capture import Halves, compare_ways, lay_out
from tests.helpers import open_loop, run_for


@pytest.fixture
def loop(tmp_path):
    loop = open_loop(
        tmp_path / "r", "+experiment=dreamer_debug", "device=cpu", "eval.every_frames=0"
    )
    run_for(loop, 40)
    return loop


def batch_of(loop):
    return loop.parts.buffers["replay"].sample().map(lambda x: x.clone())


def test_halves_compute_as_autocast_does_and_move_the_full_weights(loop):
    batch, agent = batch_of(loop), loop.workflow
    twin = copy.deepcopy(agent)
    twin.follower = type(twin.follower)(twin.slow, twin.critic)
    twin.optimizers["agent"] = type(agent.optimizers["agent"])(
        agent.optimizers["agent"].config,
        [p for m in (twin.model, twin.actor, twin.critic) for p in m.parameters()],
    )
    twin.load_state_dict(agent.state_dict())
    halves = Halves(twin, lay_out(twin, halve=True))
    results = []
    for one, around in ((agent, None), (twin, halves.instead)):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            if around is None:
                metrics, _ = one.update(batch)
            else:
                with around():
                    assert next(one.actor.parameters()).dtype == torch.bfloat16
                    metrics, _ = one.update(batch)
        results.append(metrics)
    for key, value in results[0].items():
        torch.testing.assert_close(results[1][key], value, rtol=0.02, atol=0.02, msg=key)
    assert all(p.dtype == torch.float32 for p in twin.parameters())
    pairs = zip(agent.parameters(), twin.parameters(), strict=True)
    near = [torch.isclose(a, b, atol=1e-4).float().mean() for a, b in pairs]
    assert min(near) > 0.9


def test_the_first_fast_update_must_give_the_plain_losses(loop):
    batch, agent = batch_of(loop), loop.workflow
    before = {k: v.clone() for k, v in agent.named_parameters()}
    chance = torch.get_rng_state()
    out = compare_ways(
        agent, torch.float32, lambda: agent.update(batch), lambda: agent.update(batch)
    )
    assert "loss" in out[0]
    after = {k: v.clone() for k, v in agent.named_parameters()}
    for name, value in before.items():  # one step was taken, not two
        agent.get_parameter(name).data.copy_(value)
    assert any(not torch.equal(before[k], after[k]) for k in before)
    torch.set_rng_state(chance)

    def wrong():
        metrics, extras = agent.update(batch)
        return {**metrics, "loss": metrics["loss"] * 1.5}, extras

    with pytest.raises(LabError, match="compile=false"):
        compare_ways(agent, torch.float32, lambda: agent.update(batch), wrong)


def test_pieces_are_fast_inside_the_block_only():
    class One:
        awake = False

    piece = One()
    with capture.awake([piece]):
        assert piece.awake
    assert not piece.awake
