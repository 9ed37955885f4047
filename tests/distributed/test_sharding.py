"""Sharded weights: the same numbers as with whole ones, and no process has all of them."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from dreamlab import build
from dreamlab.cli import main
from dreamlab.config import LabConfig
from dreamlab.core import sharding, world
from dreamlab.core.errors import ConfigError
from dreamlab.core.workflow import Workflow
from tests.distributed.ranks import run_ranks
from tests.distributed.test_equal_batches import Kept, _rows
from tests.helpers import config_of, metrics, open_loop

UPDATES = 20
TOLERANCE = 2e-5
"""Of losses and norms, relative: sums over processes are taken in another order."""
BASE = ("tiny=true", "device=cpu", "accel=off", "eval.episodes=1", "eval.every_frames=0",
        "eval.video=false", "threads=1")  # fmt: skip
UNET = (
    "workflow.policy={_target_: diffusion, obs_steps: 2, horizon: 8, execute: 4,"
    " net: {_target_: unet1d, widths: [16, 32], time_dim: 16}}"
)
CASES = {
    "dreamer": ("dreamer_cartpole", *BASE, "training.total_frames=300"),
    "tdmpc2": ("tdmpc2_pendulum", *BASE, "training.total_frames=300"),
    "unet": ("imitation_pendulum", *BASE, "eval.every_updates=0", UNET,
             "++workflow.optimizer.ema=0.99", "++workflow.optimizer.agc=0.3"),
}  # fmt: skip
SHARDED = ("distributed.processes=2", "distributed.shard=true", "distributed.shard_least=64")


def learnt(workflow: Workflow[Any], kept: Kept, rank: int) -> list[dict[str, float]]:
    """Return what each of some updates reports, every rank with its own windows."""
    ((phase, batches),) = list(kept.batches.values())[-1:]
    out: list[dict[str, float]] = []
    for i in range(UPDATES):
        batch = _rows(batches[i % len(batches)], slice(rank, None, 2))
        for hook in phase.update_hooks:
            result = getattr(workflow, hook)(batch, phase=phase)
            found = result[0] if isinstance(result, tuple) else result
            out.append({k: float(v) for k, v in found.items()})
    return out


def held(workflow: Workflow[Any]) -> dict[str, int]:
    """Return how many numbers a process holds of parameters, moments and averages."""
    opts = list(workflow.optimizers.values())
    moments = [x for o in opts for name in o.inner.names for x in getattr(o.inner, name)]
    averages = [x for o in opts for x in o.average]
    every: dict[str, list[torch.Tensor]] = {
        "weights": [*workflow.parameters()],
        "moments": moments,
        "averages": averages,
    }
    return {k: sum(x.numel() for x in sharding.parts(v)) for k, v in every.items()}


def compared(config: LabConfig, sharded: LabConfig, kept: Kept, rank: int) -> dict[str, Any]:
    """Learn with whole and with sharded weights; return what came of both."""
    spec = kept.loop.workflow.spec
    plain = build.build_workflow(config, spec)
    first = {k: v.clone() for k, v in plain.state_dict().items() if isinstance(v, torch.Tensor)}
    expected, whole = learnt(plain, kept, rank), held(plain)
    parts = build.build_workflow(sharded, spec)
    assert parts.sharded
    begun = sharding.whole_state(parts)
    if world.is_main():
        assert all(torch.equal(begun[k], v) for k, v in first.items()), "not the same start"
    found = learnt(parts, kept, rank)
    file = io.BytesIO()
    state = sharding.whole_state(parts)
    torch.save(state if rank == 0 else {}, file)
    return {"whole": whole, "part": held(parts), "expected": expected, "found": found,
            "state": file.getvalue(), "plain": plain.state_dict() if rank == 0 else {}}  # fmt: skip


def gap(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_sharded_weights_learn_the_same(name, tmp_path):
    loop = open_loop(tmp_path / "run", *CASES[name])
    kept = Kept(loop)
    loop.observers.add(kept)
    loop.run()
    plain = config_of(*CASES[name])
    two = config_of(*CASES[name], *SHARDED)
    ranks = run_ranks(lambda rank: compared(plain, two, kept, rank), tmp_path / "r")
    for rank in ranks:
        assert len(rank["found"]) >= UPDATES
        for a, b in zip(rank["expected"], rank["found"], strict=True):
            worst = max((gap(a[k], b[k]), k) for k in a if "loss" in k or "norm" in k)
            assert worst[0] < TOLERANCE, worst
        for kind, numbers in rank["whole"].items():
            assert rank["part"][kind] <= 0.75 * numbers, (kind, rank["part"][kind], numbers)
    state = torch.load(io.BytesIO(ranks[0]["state"]), weights_only=True)
    alone = build.build_workflow(plain, loop.workflow.spec)
    alone.load_state_dict(state)  # one process reads what two have written
    for key, value in alone.state_dict().items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            torch.testing.assert_close(value, ranks[0]["plain"][key], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["distributed.shard=true"], "shard has no effect with processes=1"),
        (["distributed.processes=2", "distributed.shard_least=5"], "without shard"),
        ([*SHARDED, "compile=true"], "compile"),
        ([*SHARDED, "log.norms=true"], "log.norms"),
        ([*SHARDED, "distributed.check_every_updates=5"], "check_every_updates"),
    ],
)
def test_what_does_not_go_with_shards_is_an_error(words, message):
    with pytest.raises(ConfigError, match=message):
        config_of("dreamer_cartpole", "tiny=true", *words)


@pytest.mark.slow
def test_a_sharded_run_is_resumed_and_read_by_one_process(tmp_path):
    words = ["dreamer_cartpole", *BASE, "training.total_frames=400", "log.every_frames=100",
             "distributed.processes=2", "distributed.shard=true"]  # fmt: skip
    folder = tmp_path / "r"
    assert main(["train", *words, f"run.dir={folder}"]) == 0
    assert main(["resume", str(folder), "training.total_frames=600"]) == 0
    assert metrics(folder)[-1]["env_frames"] >= 600
    assert main(["eval", str(folder), "--episodes", "1"]) == 0
