"""The chain of digests: one for the same run, another for any other, exact over a resume."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dreamlab.core.types import Step
from dreamlab.engine.digest_chain import LARGE, Chain, checksum, digest_of_weights
from dreamlab.engine.observer import Observer
from tests.helpers import open_loop, run_for, run_until

KINDS = ("transitions", "losses", "weights")


def small(name: str = "ppo_cartpole") -> list[str]:
    return [
        f"+experiment={name}", "tiny=true", "env.num_envs=2", "training.total_frames=600",
        "log.every_frames=100", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
        "device=cpu",
    ]  # fmt: skip


def links(folder):
    return [json.loads(line) for line in (folder / "chain.jsonl").read_text().splitlines()]


class Crash(Observer):
    """Ends a run as a power cut would, after a number of records."""

    def __init__(self, records):
        self.left = records

    def flushed(self, record):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["ppo_cartpole", "dqn_cartpole"])
def test_an_interrupted_run_has_the_chain_of_an_uninterrupted_one(name, tmp_path):
    open_loop(tmp_path / "whole", *small(name)).run()
    loop = open_loop(tmp_path / "run", *small(name))
    assert run_until(loop, lambda: loop.counters.env_frames >= 350) == "interrupted"
    part = links(tmp_path / "run")
    open_loop(tmp_path / "run", *small(name)).run()
    whole = links(tmp_path / "whole")
    assert 0 < len(part) < len(whole)
    assert links(tmp_path / "run") == whole
    assert all(link["missed"] == 0 for link in whole)
    assert len({link["weights"] for link in whole}) > 2


def test_links_after_the_checkpoint_are_cut_off(tmp_path):
    options = [*small(), "checkpoint.every_frames=250"]
    open_loop(tmp_path / "whole", *options).run()
    loop = open_loop(tmp_path / "run", *options)
    loop.observers.add(Crash(records=4))
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert len(links(tmp_path / "run")) == 4
    loop = open_loop(tmp_path / "run", *options)
    assert 0 < len(links(tmp_path / "run")) < 4
    loop.run()
    assert links(tmp_path / "run") == links(tmp_path / "whole")


def test_another_seed_gives_another_chain(tmp_path):
    for seed in (1, 2):
        open_loop(tmp_path / str(seed), *small(), f"seed={seed}").run()
    pairs = zip(links(tmp_path / "1"), links(tmp_path / "2"), strict=False)
    for a, b in pairs:
        assert a["link"] != b["link"]
        assert all(a[kind] != b[kind] for kind in KINDS)


def test_a_changed_critic_shows_in_weights_and_losses_and_not_in_transitions(tmp_path):
    for name, change in (("a", 0.0), ("b", 1e-3)):
        loop = open_loop(tmp_path / name, *small(), "workflow.optimizer.lr=0")
        with torch.no_grad():
            loop.workflow.critic.bias += change
        loop.run()
    for a, b in zip(links(tmp_path / "a"), links(tmp_path / "b"), strict=True):
        assert a["transitions"] == b["transitions"]
        assert a["weights"] != b["weights"]
        assert a["losses"] != b["losses"]


def test_a_run_can_do_without_and_a_late_chain_says_what_it_missed(tmp_path):
    run_for(open_loop(tmp_path / "r", *small(), "log.chain=false"), 21)
    assert not (tmp_path / "r" / "chain.jsonl").exists()
    open_loop(tmp_path / "r", *small()).run()
    assert all(link["missed"] > 0 for link in links(tmp_path / "r"))


@pytest.mark.parametrize("size", [LARGE - 1, LARGE, 5 * LARGE + 3])
def test_every_byte_and_its_place_count(size):
    base = np.arange(size, dtype=np.uint64).astype(np.uint8)
    seen = {checksum(base, 0), checksum(base, 12345)}
    for at in (0, 8, size // 2, size - 1):
        other = base.copy()
        other[at] ^= 1
        seen.add(checksum(other, 0))
    seen.add(checksum(np.roll(base, 8), 0))
    assert len(seen) == 7


def test_every_part_of_a_tick_counts(tmp_path):
    loop = open_loop(tmp_path / "r", *small())
    no = np.zeros(2, bool)
    step = Step({"state": np.ones((2, 4), np.float32)}, np.zeros(2, np.float32), no, no, no)
    yes = np.array([True, False])
    other = Step(step.obs, step.reward + 1, no, no, no)
    last = Step(step.obs, step.reward, no, yes, no)
    terminal = Step(step.obs, step.reward, no, yes, yes)
    action = np.zeros(2, np.int64)
    ticks = [(step, action, 0), (other, action, 0), (step, action + 1, 0), (last, action, 1)]
    ticks.append((terminal, action, 1))
    found = set()
    for tick in ticks:
        chain = Chain(tmp_path / "c.jsonl", loop.workflow)
        chain.ticked(*tick)
        found.add(chain.crc)
        chain.close()
    assert len(found) == len(ticks)


def test_weights_of_any_type_are_summed(tmp_path):
    workflow = open_loop(tmp_path / "r", *small()).workflow
    before = digest_of_weights(workflow)
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float64):
        workflow.register_buffer("more", torch.ones(3).to(dtype))
        assert digest_of_weights(workflow) != before
    assert digest_of_weights(workflow) == digest_of_weights(workflow)
