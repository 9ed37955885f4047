"""What a run takes of its machine: in every record, and stage by stage for `dreamlab debug`."""

from __future__ import annotations

import json
import os
import time
from mmap import mmap

import numpy as np
import pytest
import torch

from dreamlab.engine.memory import MemoryProfile, arrays_in, describe
from dreamlab.engine.observer import Observer
from dreamlab.engine.system import System, reset_peak, rss
from tests.helpers import metrics, open_loop, run_for

SMALL = (
    "+experiment=dqn_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=1200",
    "log.every_frames=200", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
    "device=cpu",
)  # fmt: skip
MIB = 2**20


def test_every_record_says_what_the_run_takes(tmp_path):
    open_loop(tmp_path / "r", *SMALL).run()
    records = [json.loads(x) for x in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert len(records) > 3
    for record in records:
        assert 20 * MIB < record["system/rss_bytes"] < 64 * 1024 * MIB
        assert 0 < record["system/cpu_cores"] < 2 * (os.cpu_count() or 1)
        assert 0 < record["system/memory_share"] <= 1
    assert not any(k.startswith("system/") for r in metrics(tmp_path / "r") for k in r)
    open_loop(tmp_path / "q", *SMALL, "log.system=false").run()
    assert "system/" not in (tmp_path / "q" / "metrics.jsonl").read_text()
    assert metrics(tmp_path / "q") == metrics(tmp_path / "r")


def fresh(size):
    """Return memory that the process did not have before, which malloc does not promise."""
    memory = np.frombuffer(mmap(-1, size), np.uint8)
    memory[:] = 1
    return memory


def numbers(system):
    record = {}
    system.flushing(record)
    return record


def test_memory_and_cores_are_those_in_use():
    system = System(torch.device("cpu"))
    before = numbers(system)["system/rss_bytes"]
    kept = fresh(64 * MIB)
    assert numbers(system)["system/rss_bytes"] - before > 0.9 * kept.nbytes
    time.sleep(0.3)
    assert numbers(system)["system/cpu_cores"] < 0.5
    began, end = time.monotonic(), time.process_time() + 0.2
    while time.process_time() < end:
        pass
    cores = 0.2 / (time.monotonic() - began)  # of a busy machine, this process gets a part
    assert numbers(system)["system/cpu_cores"] == pytest.approx(cores, rel=0.3)


class Gulp(Observer):
    """Takes memory during one update, and gives it back."""

    def updated(self, batch, metrics):
        fresh(200 * MIB)


def test_the_stage_that_takes_most_memory_is_found(tmp_path):
    if not reset_peak():
        pytest.skip("this system does not tell the peak of a stage")
    loop, profile = open_loop(tmp_path / "r", *SMALL), MemoryProfile()
    loop.observers.add(profile)
    loop.observers.add(Gulp())
    run_for(loop, 300)
    collect, update = profile.stages["collect"], profile.stages["update"]
    assert update.peak - collect.peak > 150 * MIB
    assert rss() <= update.peak


def test_a_profile_knows_what_the_run_holds(tmp_path):
    loop, profile = open_loop(tmp_path / "r", *SMALL), MemoryProfile()
    loop.observers.add(profile)
    run_for(loop, 300)
    assert loop.counters.updates
    weights = sum(t.nbytes for t in [*loop.workflow.parameters(), *loop.workflow.buffers()])
    learnt = sum(p.nbytes for p in loop.workflow.optimizers["dqn"].params)
    found = profile.by_kind()
    assert found["weights"] == weights
    assert found["gradients"] == learnt
    assert 2 * learnt <= found["optimizer"] <= 2 * learnt + 64  # two moments and a count
    stored = loop.parts.buffers["replay"].nbytes()
    assert stored <= found["replay"] <= 1.5 * stored
    modules = profile.by_module()
    assert modules["online"] == sum(p.nbytes for p in loop.workflow.online.parameters())
    assert modules["online.advantage"] < modules["online"]
    sizes = [h.nbytes for h in profile.held]
    assert sizes == sorted(sizes, reverse=True)
    text = "\n".join(describe(profile))
    for part in ("collect", "update", "replay: store.data.obs/state [2, 1000, 4] float32"):
        assert part in text


def test_views_are_counted_once():
    class Thing:
        def __init__(self):
            self.data = torch.zeros(10, 4)
            self.flat, self.half = self.data.view(-1), self.data.numpy()[:5]
            self.more = {"a": [np.zeros(3)], "self": self, "text": "x"}

    assert [(p, v.nbytes) for p, v in arrays_in(Thing())] == [("data", 160), ("more.a.0", 24)]
