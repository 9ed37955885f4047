"""Memory and norms as only a GPU can show them: `pytest -m gpu` on a machine with one."""

from __future__ import annotations

import json

import pytest
import torch

from dreamlab.engine.memory import MemoryProfile, describe
from tests.helpers import open_loop

pytestmark = pytest.mark.gpu
SMALL = (
    "+experiment=dreamer_debug", "device=cuda", "~workflow.rssm", "~workflow.encoder",
    "~workflow.decoder", "~workflow.reward", "~workflow.cont", "~workflow.actor",
    "~workflow.critic", "workflow.size=1m", "eval.video=false", "eval.episodes=1",
    "eval.every_frames=0", "report.every_frames=0", "log.every_frames=50", "log.norms=true",
    "checkpoint.every_frames=0", "checkpoint.every_s=0", "training.total_frames=300",
)  # fmt: skip


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run in bfloat16 with everything switched on that looks at it, and its folder."""
    folder = tmp_path_factory.mktemp("watched") / "r"
    loop, profile = open_loop(folder, *SMALL, "precision=bf16"), MemoryProfile()
    loop.observers.add(profile)
    loop.run()
    return loop, profile, folder


def test_records_and_profiles_say_what_the_gpu_holds(watched):
    loop, profile, folder = watched
    weights = sum(p.nbytes for p in loop.workflow.parameters())
    records = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        assert weights < record["system/gpu_bytes"] <= record["system/gpu_peak_bytes"]
        assert record["system/gpu_bytes"] <= record["system/gpu_reserved_bytes"]
        assert 0 <= record.get("system/gpu_share", 0) <= 1
    assert profile.stages["update"].gpu_peak > profile.by_kind()["weights"]
    assert profile.gpu["reserved"] >= profile.gpu["allocated"] > weights
    assert "GPU peak" in describe(profile)[0]


def test_recorded_updates_leave_the_norms_of_their_gradients(watched, tmp_path):
    fast, _, _ = watched
    plain = open_loop(tmp_path / "b", *SMALL, "compile=false")
    buffer = fast.parts.buffers["replay"]
    batches = [buffer.sample().map(lambda x: x.clone()) for _ in range(2)]
    seen = []
    for batch in batches:
        plain.workflow.load_state_dict(fast.workflow.state_dict())
        for loop in (fast, plain):
            torch.manual_seed(0)
            loop.workflow.update_agent(batch, phase=fast.scheduler.phase)
        (a,), (b,) = ([o.grad_norms for o in x.workflow.optimizers.values()] for x in (fast, plain))
        assert abs(a.norm() - b.norm()) < 0.3 * b.norm()
        seen.append(a.clone())
    assert not torch.equal(*seen)  # every replay writes them
