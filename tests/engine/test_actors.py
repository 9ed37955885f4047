"""Actors: their steps become streams of the store, whatever happens to them on the way."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import chain, repeat

import numpy as np
import pytest
import torch

from dreamlab.build import check
from dreamlab.cli import main
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.engine.actors import board as board_module
from dreamlab.engine.actors.board import Board
from dreamlab.engine.actors.collector import RemoteCollector
from dreamlab.engine.actors.local import LocalActors
from dreamlab.engine.actors.weights import pack, unpack
from dreamlab.engine.actors.worker import Request
from dreamlab.engine.checkpoint import CheckpointConfig, Checkpoints
from dreamlab.engine.observer import Observer
from dreamlab.envs.normalize import RunningMoments
from dreamlab.runs.readers import read_metrics
from tests.engine.inline_actors import put_inline
from tests.helpers import config_of, metrics, open_loop, run_until

QUIET = (
    "eval.every_frames=0", "eval.episodes=1", "eval.num_envs=1", "eval.video=false", "device=cpu",
    "log.every_frames=50",
)  # fmt: skip
SAC = (
    "+experiment=sac_pendulum", "tiny=true", "env.suite=dummy", "env.id=counting",
    "training.phases.1.train_ratio=4", "training.total_frames=280", *QUIET,
)  # fmt: skip
ACTORS = ("actors.num=2", "env.num_envs=2", "actors.block_ticks=4", "actors.queue_ticks=8")


def stored(loop):
    """Return every stored step, `[streams, ticks, ...]`, in the order of time."""
    replay = loop.parts.buffers["replay"]
    assert replay.added <= replay.ticks, "nothing was overwritten"
    steps = replay.store.take(0, replay.added)
    return {k: v.numpy() for k, v in steps.items() if not k.startswith("extras/")}


def check_streams(steps):
    """Check that each stream is a sequence of episodes that count; return where one was cut."""
    obs, reward = steps["obs/state"][..., 0], steps["reward"]
    first, last, action = steps["is_first"], steps["is_last"], steps["action"][..., 0]
    assert first[:, 0].all()
    new = first[:, 1:]
    np.testing.assert_array_equal(obs[:, 1:][~new], obs[:, :-1][~new] + 1)
    np.testing.assert_allclose(reward[:, 1:][~new], action[:, :-1][~new], atol=1e-6)
    assert (obs[first] == 0).all()
    assert new[last[:, :-1]].all(), "after a last step comes a first one"
    return np.argwhere(new & ~last[:, :-1])


class KillOnce(Observer):
    """Lets an actor die once so many frames are stored."""

    def __init__(self, frames, kill):
        self.frames, self.kill, self.done = frames, kill, False

    def started(self, loop):
        self.loop = loop

    def after(self, action):
        if not self.done and self.loop.counters.env_frames >= self.frames:
            self.done = True
            self.kill()


def test_steps_of_actors_are_streams_of_the_store(tmp_path):
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS)
    _, transport = put_inline(loop)
    assert loop.run() == "finished"
    assert transport.closed
    steps = stored(loop)
    assert steps["reward"].shape[0] == 4
    assert len(check_streams(steps)) == 0
    assert loop.counters.decisions == steps["reward"].size
    assert loop.counters.env_frames == np.count_nonzero(~steps["is_last"])
    assert len({a.tobytes() for a in steps["action"]}) == 4, "each stream has its own randomness"
    assert not (tmp_path / "r" / "chain.jsonl").exists()


def test_the_train_ratio_is_that_of_the_plain_loop(tmp_path):
    plain = open_loop(tmp_path / "plain", *SAC, "env.num_envs=4")
    plain.run()
    loop = open_loop(tmp_path / "actors", *SAC, *ACTORS)
    put_inline(loop)
    loop.run()
    assert loop.counters == plain.counters
    ours, theirs = metrics(tmp_path / "actors"), metrics(tmp_path / "plain")
    assert [(r["env_frames"], r["updates"]) for r in ours] == [
        (r["env_frames"], r["updates"]) for r in theirs
    ]


def test_the_stream_of_an_actor_that_dies_is_cut_there(tmp_path):
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS)
    collector, transport = put_inline(loop)
    loop.observers.add(KillOnce(150, lambda: transport.doomed.append(1)))
    assert loop.run() == "finished"
    cuts = check_streams(stored(loop))
    assert set(cuts[:, 0]) <= {2, 3}, "only the environments of the actor that died"
    assert transport.started == [(0, 0), (1, 0), (1, 1)]
    lines = (tmp_path / "r" / "events.jsonl").read_text().splitlines()
    said = [e for line in lines if (e := json.loads(line))["event"] == "actor_replaced"]
    assert [(e["actor"], e["why"]) for e in said] == [(1, "it was told to")]
    assert metrics(tmp_path / "r")[-1]["actors/replaced"] == 1
    replay = loop.parts.buffers["replay"]
    for _ in range(20):  # windows of transitions never lie across the seam
        batch = replay.sample()
        torch.testing.assert_close(batch.reward[:, 1], batch.action[:, 0, 0])
    assert collector.get_state()["generation"] == 1


def test_an_actor_that_always_dies_ends_the_run(tmp_path):
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS, "actors.restarts=2")
    _, transport = put_inline(loop)
    start = transport.start

    def dies(index, generation):
        start(index, generation)
        transport.doomed += [1] if index == 1 else []

    transport.start = dies
    with pytest.raises(LabError, match="actor 1 died 3 times without a step: it was told to"):
        loop.run()
    assert transport.closed


def test_an_actor_waits_when_its_queue_is_full(tmp_path):
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS)
    collector, transport = put_inline(loop)
    ask, most = transport.ask, []

    def noted(index, request, blocks):
        ask(index, request, blocks)
        waiting = len(transport.requests[index]) * request.ticks
        most.append(waiting + collector.streams[index].ticks)

    transport.ask = noted
    loop.run()
    assert max(most) == 8


def test_weights_reach_the_actors_and_their_age_is_told(tmp_path):
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS, "actors.weights_age_s=0")
    _, transport = put_inline(loop)
    loop.run()
    assert transport.published == loop.counters.updates
    for worker in transport.workers.values():
        assert 0 < worker.version <= transport.published
    record = metrics(tmp_path / "r")[-1]
    assert 0 <= record["actors/weights_age_updates"] <= 20
    assert record["actors/weights_age_max_s"] >= record["actors/weights_age_s"] >= 0
    newest = transport.workers[0]
    if (snapshot := transport._newer(newest)) is not None:
        newest.adopt(snapshot)
    ours, theirs = loop.workflow, newest.collector.workflow
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_normalisation_is_agreed_on(tmp_path):
    options = ("+env.normalize_obs={}", "+env.normalize_reward={}", "actors.weights_age_s=0")
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS, *options)
    collector, transport = put_inline(loop)
    seen = []
    take = collector._take

    def noted(index, event):
        seen.append(event.moments["obs/state"])
        take(index, event)

    collector._take = noted
    loop.run()
    moments = collector.envs.normalizer.moments["state"]
    assert moments.count == pytest.approx(sum(m["count"] for m in seen), abs=1e-3)
    assert moments.mean.item() == pytest.approx(2.5, abs=0.3)  # 0 to 5
    assert moments.count > loop.counters.decisions - 1
    for worker in transport.workers.values():
        own = worker.collector.envs.normalizer.moments["state"]
        assert own.count > 0.8 * moments.count, "it knows what the other saw"
    assert stored(loop)["obs/state"].max() < 2


def test_moments_that_are_merged_are_those_of_all():
    rng = np.random.default_rng(0)
    parts = [rng.normal(3, 2, (n, 2)) for n in (5, 1, 40)]
    whole, merged = RunningMoments((2,)), RunningMoments((2,))
    whole.update(np.concatenate(parts))
    for part in parts:
        merged.merge(len(part), part.mean(0), part.var(0))
    merged.merge(0, np.zeros(2), np.ones(2))
    np.testing.assert_allclose(merged.mean, whole.mean)
    np.testing.assert_allclose(merged.var, whole.var)


def test_dqn_counts_the_decisions_of_all_actors(tmp_path):
    options = ("+experiment=dqn_cartpole", "tiny=true", "training.total_frames=300", *QUIET)
    loop = open_loop(tmp_path / "r", *options, *ACTORS)
    put_inline(loop)
    before = loop.workflow.decisions.value
    loop.run()
    assert loop.workflow.decisions.value - before == loop.counters.decisions
    assert loop.workflow.epsilon() < loop.workflow.config.epsilon


def test_a_run_with_actors_goes_on_from_its_checkpoint_but_cannot_be_verified(tmp_path, capsys):
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS)
    put_inline(loop)
    assert run_until(loop, lambda: loop.counters.env_frames >= 150) == "interrupted"
    frames = loop.counters.env_frames
    again = open_loop(tmp_path / "r", *SAC, *ACTORS)
    _, transport = put_inline(again)
    assert again.counters.env_frames == frames
    assert again.run() == "finished"
    assert transport.started == [(0, 1), (1, 1)], "other random numbers than the first time"
    steps = stored(again)
    check_streams(steps)
    assert again.counters.env_frames == np.count_nonzero(~steps["is_last"])
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    assert manifest["exact_resume"] is False
    assert "actors" in manifest["exact_resume_reason"]
    assert main(["verify", str(tmp_path / "r")]) == 2
    assert "depends on their timing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("+experiment=ppo_cartpole", "actors=2"), "is on-policy: buffers.rollout"),
        (("+experiment=world_models_carracing", "actors=2"), "on-policy"),
        ((*SAC, "actors.queue_ticks=32"), "queue_ticks has no effect without actors.num"),
        ((*SAC, "actors=2", "actors.cpus=2"), "cpus has no effect without actors.where=ray"),
        ((*SAC, "actors=2", "actors.queue_ticks=8"), "must hold a block"),
        ((*SAC, "actors=2", "actors.where=ray", "actors.linger_s=9"), "without actors.address"),
    ],
)
def test_what_actors_cannot_do_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        check(config_of(*options))


def test_fresh_episodes_and_actors_exclude_each_other():
    options = (*SAC, "actors=2", "+training.phases.1.fresh_episodes=true")
    with pytest.raises(ConfigError, match="fresh_episodes"):
        check(config_of(*options))


def test_a_number_alone_stands_for_actors(tmp_path):
    assert config_of(*SAC, "actors=3").actors.num == 3
    (tmp_path / "own.yaml").write_text("# @package _global_\nactors: 2\n")
    assert config_of(*SAC, f"+preset={tmp_path}/own.yaml").actors.num == 2


def test_weights_on_the_board_are_whole_or_not_there():
    board = Board.create(b"x" * 1000)
    try:
        assert board.read(-1) is None
        board.write(0, b"a" * 1000)
        assert board.read(-1) == b"a" * 1000
        assert board.read(0) is None
        board.write(1, b"b" * 1200)
        other = Board.attach(board.memory.name, board.capacity)
        assert other.read(0) == b"b" * 1200
        other.buffer[-board.capacity + 5] = 0  # as if the writer were in the middle of it
        assert board.read(0) is None
        board.write(2, b"c")
        assert other.read(1) == b"c"
        assert not other.stopped
        board.stop()
        assert other.stopped
        other.close()
    finally:
        board.close(remove=True)


def test_an_actor_without_weights_does_not_act_before_it_has_read_some(tmp_path):
    """A reader that the writer overtakes gets none: also at its first attempts."""
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS)
    collector, transport = put_inline(loop)
    worker = transport.make(0, 0)
    snapshot = unpack(pack(loop.workflow, collector.weights.next(), collector.statistics()))
    read = chain([None, None, snapshot], repeat(None))
    block = worker.collect(Request(3, 60.0, False), lambda: next(read), lambda: False)
    assert (block.version, block.ticks) == (0, 3)
    collector.weights.arrived(block)
    worker.begin_anew()
    stop = chain([False, False], repeat(True))
    assert worker.collect(Request(3, 60.0, False), lambda: None, lambda: next(stop)) is None
    worker.close()
    transport.close()


def test_weights_without_room_in_shared_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(board_module, "SHARED", tmp_path)
    full = lambda _: (64 << 20, 60 << 20, 4 << 20)  # noqa: E731
    monkeypatch.setattr(board_module.shutil, "disk_usage", full)
    Board.create(b"x" * 1_000_000).close(remove=True)
    with pytest.raises(LabError, match=r"need 5 MB .*has 4 of 64 MB free.* --shm-size=1g"):
        Board.create(b"x" * 2_000_000)
    monkeypatch.setattr(board_module.shutil, "disk_usage", lambda _: (0, 0, 0))
    Board.create(b"x" * 2_000_000).close(remove=True)  # a file system without a limit


def test_late_records_are_put_into_their_place(tmp_path):
    lines = [{"env_frames": 100}, {"env_frames": 300}, {"env_frames": 200, "late": 1.0}]
    lines += [{"env_frames": 400}, {"env_frames": 150}, {"env_frames": 500}]  # one is damaged
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = read_metrics(tmp_path)
    assert [r["env_frames"] for r in found.records] == [100, 200, 300, 400, 500]
    assert found.damaged == 1


def test_a_checkpoint_gets_its_score_later(tmp_path):
    from dreamlab.core.clock import Clock

    kept = Checkpoints(tmp_path, CheckpointConfig(keep=2), print)
    kept.held = {f"{100:012d}"}
    for frames in (100, 200, 300, 400):
        kept.save({}, Clock(count=frames), None, {})
    assert [int(n) for n in kept.names()] == [400, 300, 100]
    kept.score(f"{100:012d}", 5.0)
    kept.held = set()
    kept.save({}, Clock(count=500), 4.0, {})
    assert [int(n) for n in kept.names()] == [500, 400, 100]
    assert kept.named("best") == tmp_path / f"{100:012d}"
    assert kept.load("best") == {}
    kept.score(f"{300:012d}", 9.0)  # it is gone
    assert kept.named("best") == tmp_path / f"{100:012d}"


def processes(loop):
    collector = loop.parts.collector
    assert isinstance(collector, RemoteCollector)
    assert isinstance(collector.transport, LocalActors)
    return {i: c.process for i, c in collector.transport.children.items()}


def test_actors_in_processes_one_of_which_is_killed(tmp_path):
    """With real processes: kill -9, an evaluation meanwhile, and nobody is left at the end."""
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS, "eval.every_frames=100")
    pids = []

    def kill():
        pids.extend(p.pid for p in processes(loop).values())
        os.kill(pids[1], signal.SIGKILL)

    loop.observers.add(KillOnce(120, kill))
    assert loop.run() == "finished"
    cuts = check_streams(stored(loop))
    assert set(cuts[:, 0]) <= {2, 3}
    lines = (tmp_path / "r" / "events.jsonl").read_text().splitlines()
    said = [e for line in lines if (e := json.loads(line))["event"] == "actor_replaced"]
    assert [(e["actor"], e["why"]) for e in said] == [(1, "it was killed by SIGKILL")]
    records = read_metrics(tmp_path / "r").records
    late = [r for r in records if "late" in r]
    assert late
    assert late[0]["env_frames"] >= 100
    assert "eval/return" in late[0]
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline, "an actor is left behind"
        time.sleep(0.05)
