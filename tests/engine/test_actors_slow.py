"""Actors in processes and on Ray: every kind of workflow, speed, and what happens when one dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from dreamlab.core.errors import LabError
from dreamlab.core.types import Mode
from dreamlab.core.workflow import Workflow
from dreamlab.engine.actors.cluster import RayActors
from dreamlab.engine.actors.collector import RemoteCollector
from dreamlab.engine.actors.options import ActorsConfig
from dreamlab.engine.actors.weights import pack, unpack
from dreamlab.engine.actors.worker import Request, Worker
from dreamlab.engine.observer import Observer
from dreamlab.runs.readers import read_metrics
from dreamlab.training import load_policy
from tests.contract.found import experiments_of, workflows
from tests.contract.test_workflows import make
from tests.engine.test_actors import ACTORS, QUIET, SAC, KillOnce, check_streams, stored
from tests.helpers import need, open_loop

pytestmark = pytest.mark.slow

TINY = ("tiny=true", "training.total_frames=400", *QUIET)
KINDS = {
    "sac": ("+experiment=sac_pendulum", "training.phases.1.train_ratio=4"),
    "dqn": ("+experiment=dqn_cartpole",),
    "rainbow": ("+experiment=dqn_rainbow_cartpole",),
    "dreamer_v3": ("+experiment=dreamer_cartpole",),
    "dreamer_v2": ("+experiment=dreamer_v2_cartpole",),
    "tdmpc2": ("+experiment=tdmpc2_pendulum",),
    "mpc": ("+experiment=mpc_pendulum",),
    "mpc_in_latents": ("+experiment=mpc_tdmpc2_pendulum",),
    "tdmpc": ("+experiment=tdmpc_pendulum",),
    "dreamer_v1": ("+experiment=dreamer_v1_cartpole_swingup",),
    "planet": ("+experiment=planet_cartpole_swingup",),
    "offline_to_online": ("+experiment=iql_pendulum",),
}


SHARE = 0.85
"""Of K times the frames of the default loop, what K actors must at least give."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_replay_workflow_learns_from_actors(kind, tmp_path):
    if "swingup" in KINDS[kind][0]:
        need("dm_control")
    options = (*KINDS[kind], *TINY, "actors=2", "env.num_envs=2", "actors.weights_age_s=0")
    loop = open_loop(tmp_path / "r", *options)
    assert loop.run() == "finished"
    steps = stored(loop)
    assert loop.counters.decisions == steps["reward"].size
    repeat = loop.parts.collector.envs.frames_per_tick
    assert loop.counters.env_frames == repeat * np.count_nonzero(~steps["is_last"])
    assert loop.counters.updates > 0
    records = read_metrics(tmp_path / "r").records
    assert all(np.isfinite(v) for r in records for k, v in r.items() if k.startswith("train/"))
    assert load_policy(tmp_path / "r").env_frames == loop.counters.env_frames


@pytest.mark.parametrize("cls", workflows(), ids=lambda c: c.__name__)
def test_acting_changes_nothing_that_the_learner_is_not_told_of(cls, tmp_path):
    """An actor's copy is overwritten by the learner's: what acting counts must be counted there."""
    loop = make(tmp_path, experiments_of(cls)[0])
    workflow, envs = loop.workflow, loop.parts.collector.envs
    if workflow.decided.__func__ is not Workflow.decided:
        return
    before = unpack(pack(workflow, 0, {}))
    state, step = workflow.initial_state(envs.num_envs), envs.reset()
    for _ in range(3):
        decision = workflow.act(step, state, Mode.TRAIN)
        state, step = decision.state, envs.step(decision.action.numpy())
    after = unpack(pack(workflow, 0, {}))
    assert repr(before.counts) == repr(after.counts)
    for name, value in before.tensors.items():
        np.testing.assert_array_equal(value, after.tensors[name], err_msg=name)


def test_latents_are_written_back_into_the_streams_of_actors(tmp_path):
    """What DreamerV3 stores beside a step is the actor's at first, and the learner's later."""
    options = (*KINDS["dreamer_v3"], *TINY, "actors=2", "env.num_envs=2")
    loop = open_loop(tmp_path / "r", *options)
    written = []
    replay = loop.parts.buffers["replay"]
    update = replay.update

    def noted(index, extras):
        before = {k: replay.read(index)[f"extras/{k}"].clone() for k in extras}
        update(index, extras)
        after = replay.read(index)
        written.append({k: not torch.equal(v, after[f"extras/{k}"]) for k, v in before.items()})

    replay.update = noted
    loop.run()
    assert written
    assert all(w and all(w.values()) for w in written)


def test_slow_environments_give_nearly_as_many_times_the_frames(tmp_path):
    speeds = {}
    for num in (0, 4):
        options = [*SAC, "env.id=slow", "training.phases.1.train_ratio=1"]
        options += [f"actors={num}"] if num else []
        loop = open_loop(tmp_path / str(num), *options, f"training.total_frames={250 + 100 * num}")
        loop.run()
        seconds = [r["time/wall_s"] for r in read_metrics(tmp_path / str(num)).records]
        frames = [r["env_frames"] for r in read_metrics(tmp_path / str(num)).records]
        last = -2  # the last one holds the final evaluation
        speeds[num] = (frames[last] - frames[0]) / (seconds[last] - seconds[0])
    # a step takes 50 ms; the default loop adds its update to that, so four may give more than four
    assert speeds[4] > SHARE * 4 * speeds[0], speeds


# -- what dies ------------------------------------------------------------------------------------


def command(folder: Path, *options: str) -> list[str]:
    own = [sys.executable, "-m", "dreamlab", "train", *options, f"run.dir={folder}"]
    return [*own, "log.terminal=plain"]


SLOW = (
    *SAC, "env.id=slow", "env.options.seconds=0.02", "training.total_frames=4000", "actors=2",
    "checkpoint.every_frames=200", "training.phases.1.train_ratio=1",
)  # fmt: skip


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.05)


def saved(folder: Path) -> int:
    return max((int(p.name) for p in (folder / "checkpoints").glob("[0-9]*")), default=0)


def children(pid: int) -> list[int]:
    """Return the processes below one, and those below them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if int(text.rsplit(")", 1)[1].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found + [c for child in found for c in children(child)]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_actors_end_with_a_learner_that_is_killed_and_the_command_goes_on(tmp_path):
    folder = tmp_path / "r"
    learner = subprocess.Popen(command(folder, *SLOW), stdout=subprocess.DEVNULL)
    wait_until(lambda: saved(folder) >= 200)
    below = children(learner.pid)
    assert len(below) >= 3  # actors, and what starts them
    learner.kill()
    learner.wait()
    wait_until(lambda: all(gone(p) for p in below), 20)
    reached = saved(folder)
    again = open_loop(folder, *SLOW, f"training.total_frames={reached + 100}")
    assert again.counters.env_frames == reached
    assert again.run() == "finished"
    check_streams(stored(again))


def test_ctrl_c_saves_and_stops_everything_within_seconds(tmp_path):
    folder = tmp_path / "r"
    learner = subprocess.Popen(
        command(folder, *SLOW), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: saved(folder) >= 200)
    below, before = children(learner.pid), saved(folder)
    os.killpg(learner.pid, signal.SIGINT)  # as a terminal does: to all of them
    told = learner.communicate(timeout=30)[0]
    assert "interrupted" in told
    assert "died" not in told
    wait_until(lambda: all(gone(p) for p in below), 10)
    assert saved(folder) >= before
    assert json.loads((folder / "manifest.json").read_text())["status"] == "interrupted"


# -- Ray ------------------------------------------------------------------------------------------


@pytest.fixture
def cluster():
    """A Ray cluster of two machines, as far as Ray can tell: a head without room, and one more."""
    ray = need("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    node = made.add_node(num_cpus=2)
    yield made, node
    ray.shutdown()
    made.shutdown()


def test_actors_of_a_ray_cluster_one_of_which_is_killed(tmp_path, cluster):
    import ray

    made, _ = cluster
    options = (*SAC, *ACTORS, "actors.where=ray", f"actors.address={made.address}")
    loop = open_loop(tmp_path / "r", *options)
    collector = loop.parts.collector
    assert isinstance(collector, RemoteCollector)
    transport = collector.transport
    assert isinstance(transport, RayActors)
    loop.observers.add(KillOnce(120, lambda: ray.kill(transport.handles[1].actor)))
    assert loop.run() == "finished"
    cuts = check_streams(stored(loop))
    assert set(cuts[:, 0]) <= {2, 3}
    lines = (tmp_path / "r" / "events.jsonl").read_text().splitlines()
    said = [e for line in lines if (e := json.loads(line))["event"] == "actor_replaced"]
    assert [e["actor"] for e in said] == [1]


def test_a_ray_machine_that_is_lost_ends_in_one_message(tmp_path, cluster):
    made, node = cluster
    options = (*SAC, *ACTORS, "actors.where=ray", f"actors.address={made.address}")
    slow = ("env.id=slow", "env.options.seconds=0.02", "actors.wait_s=40",
            "checkpoint.every_frames=100", "training.total_frames=4000")  # fmt: skip
    loop = open_loop(tmp_path / "r", *options, *slow)
    loop.observers.add(KillOnce(200, lambda: made.remove_node(node, allow_graceful=False)))
    with pytest.raises(LabError, match="did not respond for 40 s") as told:
        loop.run()
    assert "same command resumes" in str(told.value)
    reached = saved(tmp_path / "r")
    assert reached >= 100
    made.add_node(num_cpus=2)
    end = f"training.total_frames={reached + 100}"
    again = open_loop(tmp_path / "r", *options, *slow[:-1], end)
    assert again.counters.env_frames == reached
    assert again.run() == "finished"
    check_streams(stored(again))


def test_a_ray_machine_that_is_lost_with_large_blocks_ends_in_one_message(tmp_path, cluster):
    """Results over 100 KB stay on the machine that made them until somebody takes them."""
    made, node = cluster
    options = (*SAC, *ACTORS, "actors.where=ray", f"actors.address={made.address}")
    large = ("env.id=identity", "env.options={continuous: true, classes: 4096}",
             "actors.wait_s=20", "checkpoint.every_frames=100",
             "training.total_frames=4000", "buffers.replay.capacity=400")  # fmt: skip
    loop = open_loop(tmp_path / "r", *options, *large)

    def lose():
        time.sleep(2)  # actors fill their queues
        made.remove_node(node, allow_graceful=False)

    loop.observers.add(KillOnce(200, lose))
    with pytest.raises(LabError, match="did not respond for 20 s"):
        loop.run()
    lines = (tmp_path / "r" / "events.jsonl").read_text().splitlines()
    said = [e for line in lines if (e := json.loads(line))["event"] == "actor_replaced"]
    assert any("what it had collected is lost with its machine" in e["why"] for e in said), said
    assert saved(tmp_path / "r") >= 100


@pytest.mark.parametrize("large", [False, True])
def test_a_ray_machine_that_no_longer_answers_ends_in_one_message(tmp_path, cluster, large):
    """A partition: connections stay open, nothing comes through, and nothing has died.

    Large blocks are still on that machine when the learner asks for them.
    """
    made, node = cluster
    options = (*SAC, *ACTORS, "actors.where=ray", f"actors.address={made.address}")
    slow = ("env.id=slow", "env.options.seconds=0.02")
    wide = ("env.id=identity", "env.options={continuous: true, classes: 4096}",
            "buffers.replay.capacity=400")  # fmt: skip
    longer = ("actors.wait_s=15", "checkpoint.every_frames=100", "training.total_frames=4000")
    loop = open_loop(tmp_path / "r", *options, *(wide if large else slow), *longer)
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    frozen: list[psutil.Process] = []

    def partition():
        time.sleep(2 if large else 0)  # actors fill their queues
        frozen.extend([raylet, *raylet.children(recursive=True)])
        for process in frozen:
            process.suspend()

    loop.observers.add(KillOnce(200, partition))
    began = time.monotonic()
    try:
        with pytest.raises(LabError, match="did not respond for 15 s") as told:
            loop.run()
    finally:
        for process in frozen:
            process.kill()
    assert frozen
    assert time.monotonic() - began < 90
    assert "its machine is lost" in str(told.value)
    assert "same command resumes" in str(told.value)
    reached = saved(tmp_path / "r")
    assert reached >= 100
    if large:
        return
    made.add_node(num_cpus=2)
    end = f"training.total_frames={reached + 100}"
    started = "actors.wait_s=60"  # actors on a new machine may take longer than 6 s to start
    again = open_loop(tmp_path / "r", *options, *slow, *longer[:-1], end, started)
    assert again.counters.env_frames == reached
    assert again.run() == "finished"
    check_streams(stored(again))


def broken_actor(index: int, generation: int) -> Worker:
    raise KeyError("no such part\nin this version")


def test_an_error_inside_a_ray_actor_is_one_message(cluster):
    config = ActorsConfig(num=1, where="ray", address=cluster[0].address)
    transport = RayActors(config, broken_actor, "broken")
    try:
        transport.publish(0, b"")
        transport.start(0, 0)
        transport.ask(0, Request(1, 1.0, False), 1)
        with pytest.raises(LabError, match=r"actor 0 failed with KeyError: .*part") as told:
            wait_until(lambda: transport.events(0.25))
        assert "\n" not in str(told.value)
    finally:
        transport.close()


def test_only_a_ray_actor_that_owes_an_answer_is_silent(tmp_path, cluster):
    """A learner that was busy for longer than `wait_s` finds answers, and goes on."""
    made, _ = cluster
    options = (*SAC, *ACTORS, "actors.where=ray", f"actors.address={made.address}")
    loop = open_loop(tmp_path / "r", *options, "actors.wait_s=10")
    loop.observers.add(KillOnce(120, lambda: time.sleep(11)))
    assert loop.run() == "finished"


def test_ray_actors_with_full_queues_act_with_weights_of_the_stated_age(tmp_path, cluster):
    """New weights overtake the blocks that were requested before: 64 ticks are 3.2 s here."""
    made, _ = cluster
    options = (*SAC, "actors=2", "actors.where=ray", f"actors.address={made.address}")
    slow = ("env.id=slow", "actors.weights_age_s=0.5", "training.total_frames=500")
    loop = open_loop(tmp_path / "r", *options, *slow)

    class Busy(Observer):
        def after(self, action):
            time.sleep(0.1)

    loop.observers.add(Busy())
    assert loop.run() == "finished"
    records = [r for r in read_metrics(tmp_path / "r").records if "actors/queue_ticks" in r]
    assert max(r["actors/queue_ticks"] for r in records) > 40
    assert max(r.get("actors/weights_age_max_s", 0.0) for r in records) < 1.5


def test_ray_actors_wait_for_a_learner_that_died(tmp_path, cluster):
    """The same processes go on for the learner that is started again, and end when it has."""
    import ray

    made, _ = cluster
    folder = tmp_path / "r"
    on_ray = ("actors.where=ray", f"actors.address={made.address}", "actors.linger_s=60")
    learner = subprocess.Popen(command(folder, *SLOW, *on_ray), stdout=subprocess.DEVNULL)
    wait_until(lambda: saved(folder) >= 200)
    learner.kill()
    learner.wait()
    reached = saved(folder)
    ray.init(address=made.address, namespace="dreamlab", log_to_driver=False)
    names = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True)]
    assert len(names) == 2

    def pids():
        actors = [ray.get_actor(name, namespace="dreamlab") for name in sorted(names)]
        return ray.get([a.__ray_call__.remote(lambda self: os.getpid()) for a in actors])

    before, later = pids(), []
    again = open_loop(folder, *SLOW, f"training.total_frames={reached + 200}", *on_ray)
    again.observers.add(KillOnce(reached + 100, lambda: later.extend(pids())))
    assert again.run() == "finished"
    assert later == before
    check_streams(stored(again))
    wait_until(lambda: not ray.util.list_named_actors(all_namespaces=True), 20)
    wait_until(lambda: all(gone(p) for p in before), 20)
