"""Steps that carry their own name, so that any batch can be checked against its index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.config import load
from dreamlab.core.tree import to_plain
from dreamlab.core.types import ArraySpec, Batch, Decision, Spec, Step
from dreamlab.data.replay import Replay, ReplayConfig
from dreamlab.data.source import BufferContext
from dreamlab.data.store import Store

SPEC = Spec({"state": ArraySpec((2,))}, ArraySpec((1,)))
EPISODE = 7


def replay(num_envs: int = 2, folder: Path | None = None, **options: Any) -> Replay:
    """Return a small replay with these options, checked as a config file would be."""
    options = {"capacity": 20 * num_envs, "batch": 8, "length": 4, **options}
    return Replay(
        load(ReplayConfig, options, "replay"), BufferContext(SPEC, num_envs, folder=folder)
    )


def step_at(tick: int, num_envs: int = 2, episode: int = EPISODE) -> Step:
    """Return the step of that tick; episodes of `episode` steps, environment e is e steps ahead."""
    env = np.arange(num_envs)
    place = (tick + env) % episode
    state = np.stack([np.full(num_envs, tick), env], 1).astype(np.float32)
    reward = (tick * num_envs + env).astype(np.float32)
    is_last = place == episode - 1
    return Step({"state": state}, reward, (place == 0) | (tick == 0), is_last, is_last)


def decision_at(tick: int, num_envs: int = 2, dtype: torch.dtype = torch.float32) -> Decision:
    """Return the decision of that tick: action = id + 0.5, extra = -id."""
    ids = torch.arange(num_envs) + tick * num_envs
    latent = -ids[:, None].to(dtype) * torch.ones(3, dtype=dtype)
    return Decision(ids[:, None] + 0.5, extras={"latent": latent})


def feed(
    buffer: Any, ticks: int, episode: int = EPISODE, dtype: torch.dtype = torch.float32
) -> None:
    """Store the next `ticks` ticks of the stream."""
    num_envs = buffer.place.num_envs
    for tick in range(buffer.added, buffer.added + ticks):
        buffer.add(step_at(tick, num_envs, episode), decision_at(tick, num_envs, dtype))


def assert_true_to_index(batch: Batch, num_envs: int = 2) -> None:
    """Check that every step of a batch is the one its id names, and that ids are consecutive."""
    ids = batch.index
    assert ids is not None
    assert (ids[:, 1:] - ids[:, :-1] == num_envs).all()
    assert (batch.obs["state"][..., 0] == ids // num_envs).all()
    assert (batch.obs["state"][..., 1] == ids % num_envs).all()
    assert (batch.reward == ids).all()
    assert (batch.action[..., 0] == ids + 0.5).all()


def flat(batch: Batch) -> dict[str, Tensor]:
    """Return copies of all tensors of a batch by name."""
    assert batch.index is not None
    tensors = {"action": batch.action, "reward": batch.reward, "index": batch.index}
    flags = {k: getattr(batch, k) for k in ("is_first", "is_last", "is_terminal")}
    return {k: v.clone() for k, v in {**batch.obs, **batch.extras, **tensors, **flags}.items()}


def assert_same_future(a: Replay, b: Replay, ticks: int = 30) -> None:
    """Check that two replays give the same bits now and after the same further life."""
    for _ in range(ticks):
        one, two = flat(a.sample()), flat(b.sample())
        assert one.keys() == two.keys()
        for name in one:
            assert torch.equal(one[name], two[name]), name
        for buffer in (a, b):
            feed(buffer, 1)
            buffer.update(one["index"], {"priority": one["reward"][:, 0] % 5})
            buffer.update(one["index"], {"latent": torch.sin(one["latent"])})


def through_disk(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a state as a checkpoint gives it back."""
    torch.save(to_plain(state), folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def drawn(buffer: Store, num: int) -> np.ndarray:
    """Return the starts of `num` batches."""
    batches = [buffer.sample().index for _ in range(num)]
    return np.concatenate([b[:, 0].numpy() for b in batches if b is not None])
