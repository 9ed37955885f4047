"""What only a GPU can show: `pytest -m gpu` on a machine with one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dreamlab.core.types import ArraySpec, Decision, Spec, Step
from dreamlab.data.replay import Replay, ReplayConfig
from dreamlab.data.source import BufferContext
from tests.helpers import metrics, open_loop, run_for

pytestmark = pytest.mark.gpu
SMALL = ("tiny=true", "training.total_frames=400", "log.every_frames=100", "eval.episodes=1",
         "eval.every_frames=0", "eval.video=false", "device=cuda")  # fmt: skip


@pytest.mark.parametrize("name", ["ppo_cartpole", "dqn_cartpole", "sac_pendulum"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_algorithm_trains_on_the_gpu(name, precision, tmp_path):
    loop = open_loop(tmp_path / "r", f"+experiment={name}", *SMALL, f"precision={precision}")
    loop.run()
    assert next(loop.workflow.parameters()).is_cuda
    losses = [v for r in metrics(tmp_path / "r") for k, v in r.items() if k.endswith("loss")]
    assert losses
    assert all(math.isfinite(v) for v in losses)


@pytest.mark.parametrize("name", ["ppo_cartpole", "dqn_cartpole", "sac_pendulum"])
def test_resume_on_the_gpu_with_deterministic_kernels(name, tmp_path):
    options = (f"+experiment={name}", *SMALL, "deterministic=true")
    try:
        open_loop(tmp_path / "whole", *options).run()
        run_for(open_loop(tmp_path / "r", *options), 9)
        open_loop(tmp_path / "r", *options).run()
    finally:
        torch.use_deterministic_algorithms(False)
    assert metrics(tmp_path / "r") == metrics(tmp_path / "whole")


def filled(storage: str, device: str) -> Replay:
    spec = Spec({"image": ArraySpec((8, 8, 3), "uint8")}, ArraySpec((2,)))
    replay = Replay(
        ReplayConfig(200, batch=4, length=5, storage=storage), BufferContext(spec, 2, 0, device)
    )
    rng = np.random.default_rng(0)
    for t in range(150):
        obs = {"image": rng.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)}
        first = np.full(2, t % 7 == 0)
        step = Step(obs, rng.normal(size=2).astype(np.float32), first, first[::-1], first)
        latent = torch.full((2, 3), float(t), dtype=torch.bfloat16, device=device)
        replay.add(step, Decision(torch.zeros(2, 2, device=device), extras={"latent": latent}))
    return replay


@pytest.mark.parametrize("storage", ["gpu", "pinned", "ram"])
def test_a_replay_gives_the_same_batches_wherever_it_lives(storage):
    here, there = filled("ram", "cpu"), filled(storage, "cuda")
    for _ in range(5):
        a, b = here.sample(), there.sample()
        assert b.obs["image"].is_cuda
        assert torch.equal(a.obs["image"], b.obs["image"].cpu())
        assert torch.equal(a.reward, b.reward.cpu())
        assert torch.equal(a.extras["latent"], b.extras["latent"].cpu())
        assert b.index is not None
        there.update(b.index, {"latent": b.extras["latent"] + 1})
        here.update(a.index, {"latent": a.extras["latent"] + 1})
