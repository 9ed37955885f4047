"""DreamerV3 and its replay: what acting stores is what learning starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.helpers import open_loop, run_for

from dreamlab.components.world_models.rssm import Latent


def test_what_is_stored_leads_from_each_step_to_the_next(tmp_path: Path):
    """A shifted action, or a state that survives a reset, would show."""
    small = ("tiny=true", "device=cpu", "env.num_envs=2", "env.time_limit=7")
    late = "buffers.replay.min_steps=1_000"  # no update moves the weights meanwhile
    loop = open_loop(tmp_path / "r", "+experiment=dreamer_pendulum", *small, late)
    run_for(loop, 40)
    agent: Any = loop.workflow
    replay: Any = loop.parts.buffers["replay"]
    index = 2 * torch.arange(40)[None] + torch.arange(2)[:, None]
    step = replay.read(index)
    assert step["is_first"].sum() == 2 * 5  # each episode has 7 decisions and its first step
    latent = agent.decompress_latent({k: step[f"extras/{k}"] for k in ("deter", "stoch")})
    keep = (~step["is_first"][:, 1:])[..., None].float()
    before = Latent(*(x[:, :-1] * keep for x in latent)).flat()
    action = (agent.model.embed(step["action"][:, :-1]) * keep).flatten(0, 1)
    with torch.no_grad():
        after = agent.model.rssm.cell(before, action)
        shifted = agent.model.rssm.cell(before, action.roll(1, 0))
    wanted = latent.deter[:, 1:].flatten(0, 1)
    assert (after - wanted).abs().max() < 0.01  # they are stored in bfloat16
    assert (shifted - wanted).abs().max() > 0.05
