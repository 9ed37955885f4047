"""One training on a cluster: what it asks for, preemption, machines that are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from dreamlab.cli import main
from dreamlab.commands.submit import check_processes, for_limits, place_of
from dreamlab.config import to_yaml
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.engine.observer import Observer
from dreamlab.engine.processes import PEER_LOST
from dreamlab.engine.signals import PREEMPTED
from dreamlab.sweeps.job import Job, SingleJob, program
from dreamlab.sweeps.job_pool import JobPool, make_launcher
from dreamlab.sweeps.launch import local
from dreamlab.sweeps.launch import ray as ray_launch
from dreamlab.sweeps.launch.local import Attempt, BufferContext, carry_out, children, place
from dreamlab.sweeps.launch.options import LauncherConfig, Limits
from dreamlab.sweeps.launch.ranks import Ranks, Report, limits_of
from dreamlab.sweeps.launch.ray import Sent
from dreamlab.sweeps.launch.slurm import parameters
from dreamlab.sweeps.progress import SweepProgress
from dreamlab.sweeps.sweep import Sweep, SweepConfig
from dreamlab.training import exit_code
from tests.helpers import config_of, metrics, need, open_loop
from tests.sweeps.many import QUICK, Script, holders, wait_for, write_sweep

SHORT = ("ppo_cartpole", *QUICK, "threads=1")
LONGER = (*SHORT, "training.total_frames=60_000", "log.every_frames=5_000", "checkpoint.every_s=0")


def uninterrupted(folder: Path, *options: str) -> list[dict]:
    open_loop(folder / "whole", *options).run()
    return metrics(folder / "whole")


# -- what is asked for ----------------------------------------------------------------------------


def test_the_options_of_the_place_are_no_options_of_the_run():
    words = ["ppo_cartpole", "seed=1", "launcher.name=slurm", "launcher.partition=gpu",
             "launcher.options.slurm_constraint=a100", "limits.nodes=2",
             "limits.processes_per_node=4", "limits.gpus=4"]  # fmt: skip
    place, own = place_of(words)
    assert own == ["ppo_cartpole", "seed=1"]
    assert place is not None
    asked = parameters(place.launcher, place.limits)
    assert (asked["slurm_partition"], asked["slurm_constraint"]) == ("gpu", "a100")
    assert (asked["nodes"], asked["tasks_per_node"], asked["gpus_per_node"]) == (2, 1, 4)
    assert asked["slurm_additional_parameters"] == {"requeue": True}
    assert place_of(["ppo_cartpole"]) == (None, ["ppo_cartpole"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["limits.gpus=1"], "remove `launcher` and `limits`"),
        (["launcher.name=slurm", "limits.node=2"], "nodes"),
        (["launcher.name=slurm", "limits.nodes=0"], "at least 1"),
        (["launcher.name=slurm", "limits.gpus=0.5"], "whole GPUs"),
        (["launcher.name=slurm", "launcher.cluster=local", "limits.nodes=2"], "limits.nodes"),
        (["launcher.name=ray", "launcher.partition=gpu"], "launcher.partition"),
        (["launcher.name=ray", "limits.gpu_memory_gib=4"], "of this machine"),
        (["launcher=slurm"], "launcher.OPTION=VALUE"),
        (["launcher.name=slurm", "launcher.partition=a", "launcher.options.slurm_partition=b"],
         "slurm_partition"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_an_error(words, message):
    with pytest.raises(ConfigError, match=message):
        place_of(words)


def test_a_sweep_of_this_machine_has_one_node():
    with pytest.raises(ConfigError, match=r"limits\.nodes"):
        SweepConfig(experiment="ppo_cartpole", limits=Limits(nodes=2))


def test_no_other_executor_takes_the_place_of_slurm(tmp_path, monkeypatch):
    need("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="srun was not found"):
        make_launcher(LauncherConfig(name="slurm"), Limits(), 1, tmp_path)


def test_several_processes_are_started_by_the_elastic_agent(tmp_path):
    job = SingleJob(tmp_path / "r", ("ppo_cartpole",), {})
    alone = BufferContext(Limits(cpus=2), deadline_s=8.0).command(job)
    assert alone[len(program()) :][:4] == [
        "train", "ppo_cartpole", "threads=2", "checkpoint.deadline_s=8",
    ]  # fmt: skip
    ranks = Ranks(2, 4, 1, "first:29500", "7", 90)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.yaml").touch()
    several = BufferContext(ranks=ranks).command(job)
    assert several[1:3] == ["-m", "torch.distributed.run"]
    options = [o for o in several if o.startswith("--")]
    asked = {"--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=first:29500", "--node-rank=1"}
    assert asked <= {*options}
    assert several[several.index("dreamlab") + 1] == "train", "the same on all nodes"
    assert "resume" in BufferContext().command(job)


def test_the_processes_of_the_limits_are_those_of_the_run():
    limits = Limits(nodes=2, processes_per_node=2)
    assert for_limits(limits, ["ppo_cartpole"]) == ["ppo_cartpole", "distributed.processes=4"]
    assert for_limits(limits, ["devices=4"]) == ["devices=4"]
    assert for_limits(Limits(), ["ppo_cartpole"]) == ["ppo_cartpole"]
    check_processes(config_of("+experiment=ppo_cartpole", "distributed.processes=4"), limits)
    check_processes(config_of("+experiment=ppo_cartpole", "distributed.processes=3"), Limits())
    with pytest.raises(ConfigError, match=r"distributed.processes: 3, but .* start 4"):
        check_processes(config_of("+experiment=ppo_cartpole", "distributed.processes=3"), limits)


@pytest.mark.parametrize(
    ("gpus", "processes", "words", "text"),
    [
        (4, 2, "", "limits.gpus: 4 per node, but the processes per node are 2, with a GPU each: "
         "use limits.gpus=2, or limits.processes_per_node=4"),
        (1, 4, "", "use limits.gpus=4"),
        (2, 1, "", "use limits.gpus=1, or limits.processes_per_node=2"),
        (2, 1, "distributed.processes=4", "use limits.gpus=4"),
        (4, 4, "", ""), (2, 1, "devices=2", ""), (0.5, 1, "", ""), (0, 4, "", ""),
        (4, 2, "device=cpu", ""), (None, 4, "", ""),
    ],
)  # fmt: skip
def test_each_process_of_a_job_has_a_gpu(gpus, processes, words, text):
    limits = Limits(gpus=gpus, nodes=2 if processes > 1 else 1, processes_per_node=processes)
    config = config_of("+experiment=ppo_cartpole", *for_limits(limits, words.split()))
    if not text:
        check_processes(config, limits)
        return
    with pytest.raises(ConfigError) as error:
        check_processes(config, limits)
    assert text in str(error.value)


def test_the_cores_of_a_local_job_are_those_of_all_its_processes(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    limits = Limits(cpus=2, processes_per_node=2)
    assert [place(limits, slot, 2).cores for slot in (0, 1)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert place(limits, 0, 3).cores == (), "twelve are more than there are"
    assert place(Limits(cpus=2), 2, 3).cores == (4, 5)
    assert place(limits, 0, 2).variables["OMP_NUM_THREADS"] == "2", "each process has its own"


TWO = ("ppo_cartpole", "distributed.processes=2")


def test_the_processes_of_a_run_are_known_to_its_launcher(tmp_path):
    limits = Limits(cpus=1, memory_gb=4)
    job = SingleJob(tmp_path / "r", TWO, {})
    assert limits_of(job, limits) == Limits(cpus=1, memory_gb=4, processes_per_node=2)
    assert (
        limits_of(SingleJob(tmp_path / "r", ("ppo_cartpole", "devices=3"), {}), limits).processes
        == 3
    )
    assert limits_of(job, Limits(nodes=2)) == Limits(nodes=2), "one on each"
    assert limits_of(SingleJob(tmp_path / "r", ("no_experiment",), {}), limits) == limits
    job.run_folder.mkdir()
    now = to_yaml(config_of("+experiment=ppo_cartpole", "distributed.processes=4"))
    (job.run_folder / "config.yaml").write_text(now)
    assert limits_of(job, limits).processes == 4, "it was resumed with more"
    with pytest.raises(ConfigError, match="whole GPUs"):
        check_processes(
            config_of("+experiment=ppo_cartpole", TWO[1], "device=cpu"), Limits(gpus=0.5)
        )


def test_a_local_job_has_memory_cores_and_an_end_for_all_its_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(Attempt, "start", lambda self: True)
    launcher = make_launcher(LauncherConfig(), Limits(cpus=2), 2, tmp_path)
    two = launcher.start(Job(tmp_path, TWO, {}), 0)
    assert two.where.ranks.several
    assert two.where.cores == (0, 1, 2, 3)
    one = launcher.start(Job(tmp_path, ("ppo_cartpole",), {}), 1)
    assert not one.where.ranks.several
    assert one.where.cores == (4, 5), "none of those of the other"


def test_processes_have_the_threads_of_a_run_started_by_hand(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    two = BufferContext(ranks=Ranks(processes=2))
    assert two.variables["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in BufferContext().variables
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS" not in two.variables


def test_a_ray_job_asks_for_the_cores_of_all_its_processes(tmp_path, monkeypatch):
    ray, given, sent = FakeRay(), [], []
    task = SimpleNamespace(remote=lambda job, where: sent.append(where))
    ray.is_initialized = lambda: True
    ray.remote = lambda _: SimpleNamespace(options=lambda **o: given.append(o) or task)
    monkeypatch.setitem(sys.modules, "ray", ray)
    cluster = make_launcher(LauncherConfig(name="ray"), Limits(cpus=3), 1, tmp_path)
    cluster.send(SingleJob(tmp_path / "a", TWO, {}), "t")
    cluster.send(SingleJob(tmp_path / "b", ("ppo_cartpole",), {}), "t")
    assert [o["num_cpus"] for o in given] == [6, 3]
    assert [w.ranks.processes for w in sent] == [2, 1]
    assert [w.limits.processes_per_node for w in sent] == [2, 1]


def test_a_slurm_job_asks_for_the_cores_of_all_its_processes(tmp_path, monkeypatch):
    asked, sent = {}, []

    class Executor:
        def __init__(self, *_, **__) -> None: ...

        def update_parameters(self, **given) -> None:
            asked.update(given)

        def submit(self, errand):
            sent.append((asked["cpus_per_task"], errand.limits.processes_per_node))
            return SimpleNamespace(job_id=7)

    errors = SimpleNamespace(utils=SimpleNamespace(FailedJobError=OSError))
    fake = SimpleNamespace(AutoExecutor=Executor, core=errors)
    monkeypatch.setitem(sys.modules, "submitit", fake)
    config = LauncherConfig(name="slurm", cluster="local")
    launcher = make_launcher(config, Limits(cpus=3), 1, tmp_path)
    for name, words in (("a", TWO), ("b", TWO[:1])):
        job = SingleJob(tmp_path / name, words, {})
        job.folder.mkdir()
        launcher.start(job, 0)
    assert sent == [(6, 2), (3, 1)]


def test_options_of_several_processes_need_no_second_count(tmp_path, capsys):
    options = ["ppo_cartpole", "distributed.timeout_s=5", "limits.processes_per_node=2"]
    assert main(["train", *options, "launcher.name=ray", "--cfg", "job"]) == 0
    assert "processes: 2" in capsys.readouterr().out
    path = write_sweep(tmp_path, "distributed.timeout_s=5")
    assert main(["sweep", path, "--dry-run"]) == 2
    assert "no effect with processes=1" in capsys.readouterr().err
    assert main(["sweep", path, "--dry-run", "limits.processes_per_node=2"]) == 0


def test_options_of_the_job_itself_stay(tmp_path):
    where = BufferContext(Limits(cpus=2), deadline_s=72.0)
    added = SingleJob(tmp_path / "r", ("ppo_cartpole",), {})
    assert {"threads=2", "checkpoint.deadline_s=72"} <= {*where.command(added)}
    own = SingleJob(tmp_path / "r", ("ppo_cartpole", "checkpoint.deadline_s=9", "threads=1"), {})
    words = where.command(own)
    assert {"threads=1", "checkpoint.deadline_s=9"} <= {*words}
    assert not {"threads=2", "checkpoint.deadline_s=72"} & {*words}


# -- preemption of a run --------------------------------------------------------------------------


def test_sigusr1_saves_and_says_that_the_run_goes_on(tmp_path):
    loop = open_loop(tmp_path / "r", *SHORT, "checkpoint.deadline_s=60")

    class Preempt(Observer):
        def before(self, action):
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)  # as clusters do: it must not disturb

    loop.observers.add(Preempt())
    assert loop.run() == "interrupted"
    assert exit_code(loop.run_log, "interrupted") == PREEMPTED
    assert loop.deadline.timer.finished.is_set(), "nothing is ended later"
    assert open_loop(tmp_path / "r", *SHORT, "checkpoint.deadline_s=60").run() == "finished"
    assert metrics(tmp_path / "r") == uninterrupted(tmp_path, *SHORT)


def test_without_time_for_a_checkpoint_the_last_one_stays(tmp_path):
    options = (*LONGER, "checkpoint.every_frames=500", "checkpoint.deadline_s=0.0001")
    command = [sys.executable, "-m", "dreamlab", "train", *options, f"run.dir={tmp_path / 'r'}"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: (tmp_path / "r" / "checkpoints" / "latest").exists())
    run.send_signal(signal.SIGUSR1)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == PREEMPTED
    assert "too short for a checkpoint; the run resumes from the last one" in out
    loop = open_loop(tmp_path / "r", *options)
    assert loop.counters.env_frames > 0, "the last checkpoint is whole"


def attempt_of(folder: Path, processes: int) -> Attempt:
    job = SingleJob(folder / "r", ("ppo_cartpole",), {})
    job.folder.mkdir(parents=True)
    (job.folder / "stderr.log").touch()
    return Attempt(job, BufferContext(ranks=Ranks(processes=processes)))


def test_what_torchrun_ends_with_is_no_failure_if_its_processes_have_saved(tmp_path):
    two, one = attempt_of(tmp_path / "two", 2), attempt_of(tmp_path / "one", 1)
    assert two._saved(1, "interrupted")
    assert not two._saved(1, "running")
    assert not one._saved(1, "interrupted"), "without torchrun 1 is a failure"
    assert one._saved(PREEMPTED, "running")


@pytest.mark.parametrize(("code", "saved"), [(PREEMPTED, True), (2, False)])
def test_processes_that_met_their_deadline_under_torchrun_are_no_failure(code, saved, tmp_path):
    attempt = attempt_of(tmp_path, 2)
    script = tmp_path / "end.py"
    script.write_text(f"import os, time\ntime.sleep(int(os.environ['RANK']))\nos._exit({code})\n")
    agent = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    with (attempt.job.folder / "stderr.log").open("wb") as err:
        ended = subprocess.run([*agent, str(script)], stderr=err, check=False)
    assert ended.returncode == 1
    assert attempt._saved(1, "running") is saved


SAID = """PeerLostError: another process of this run has ended
E1118 12:31:31.811000 7278 torch/distributed/elastic/multiprocessing/api.py:1002] failed
Traceback (most recent call last):
  File "torch/distributed/run.py", line 1032, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-18_12:31:31
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 7283)
"""


def said(rank: int, code: int, *words: str) -> str:
    lost, rest = SAID.format(rank=rank, code=code).split("\n", 1)
    return "\n".join([*(words or [lost]), rest])


def test_the_machine_that_failed_is_the_reason_and_not_those_it_left_behind():
    killed = Report.of([said(0, PEER_LOST), said(1, -signal.SIGKILL, "")])
    assert killed.causes == {1: -9}
    reason = "rank 1 was killed by SIGKILL (out of memory?); the other processes were stopped"
    assert killed.lines() == [reason]
    both = Report.of([said(0, 2, "EnvError: no."), said(1, 2, "EnvError: no.")])
    assert both.lines() == ["EnvError: no."], "what all ranks say is said once"
    alone = Report.of([said(0, PEER_LOST)])
    assert not alone.causes
    assert alone.lines() == ["PeerLostError: another process of this run has ended"]
    beside = [said(0, PEER_LOST).replace(" torch/", " .venv/lib/my packages/torch/")]
    assert Report.of(beside).lines() == alone.lines(), "a virtual environment in the folder"
    late = Report.of([said(0, PEER_LOST), said(1, PREEMPTED)])
    assert late.out_of_time
    assert not Report.of([said(0, PREEMPTED), said(1, 2)]).out_of_time
    assert not Report.of(["nothing"]).out_of_time


def test_what_an_earlier_attempt_of_another_node_said_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "REPORT_S", 0.1)
    job = SingleJob(tmp_path / "r", ("ppo_cartpole",), {})
    job.folder.mkdir(parents=True)
    (job.folder / "stderr.log").write_text(said(0, PEER_LOST))
    other = job.folder / "stderr_node1.log"
    other.write_text(said(1, -signal.SIGKILL))
    os.utime(other, (0, 0))
    where = BufferContext(ranks=Ranks(nodes=2))
    assert not Attempt(job, where).report.causes
    attempt = Attempt(job, where)
    os.utime(other)
    assert attempt.report.causes == {1: -9}


class FakeRay(ModuleType):
    """Tasks are names; `results` has those that have ended, errors included."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.results: dict[str, object] = {}
        self.cancelled: list[str] = []
        task_error = type("RayTaskError", (Exception,), {})
        self.exceptions = SimpleNamespace(
            RayError=type("RayError", (Exception,), {}), RayTaskError=task_error
        )
        self.util = SimpleNamespace(remove_placement_group=lambda group: None)

    def wait(self, tasks, num_returns, timeout):
        ready = [t for t in tasks if t in self.results]
        return ready, [t for t in tasks if t not in ready]

    def get(self, task):
        if isinstance(result := self.results[task], Exception):
            raise result
        return result

    def cancel(self, task, force=False):
        self.cancelled.append(task)
        self.results.setdefault(task, self.exceptions.RayError("cancelled"))


def sent_to_two(folder: Path) -> tuple[Sent, FakeRay]:
    """Return a job of two nodes, whose tasks are called by the attempt and the node."""
    ray, attempts = FakeRay(), count(1)
    send = lambda job, token: ((n := next(attempts)) and [f"{n}a", f"{n}b"], "group")  # noqa: E731
    job = SingleJob(folder / "r", (), {})
    job.folder.mkdir(parents=True, exist_ok=True)
    cluster = SimpleNamespace(ray=ray, send=send, config=LauncherConfig(name="ray"), dead=set)
    return Sent(cluster, job), ray


def test_a_run_that_failed_because_another_ray_node_was_lost_is_sent_again(tmp_path):
    sent, ray = sent_to_two(tmp_path)
    assert sent.poll() is None
    ray.results["1a"] = "failed"
    assert sent.poll() is None, "Ray may not know yet that the other is gone"
    ray.results["1b"] = ray.exceptions.RayError("node died")
    assert sent.poll() is None
    assert sent.tasks == ["2a", "2b"]
    ray.results |= {"2a": "finished", "2b": "finished"}
    assert sent.poll() == "finished"


def test_a_first_ray_node_does_not_wait_for_one_that_failed_or_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_launch, "PARTNER_S", 0.0)
    monkeypatch.setattr(ray_launch, "RELEASE_S", 0.0)
    sent, ray = sent_to_two(tmp_path)
    ray.results["1b"] = ray.exceptions.RayError("node died")
    assert sent.poll() is None
    assert "1a" in ray.cancelled
    assert sent.poll() is None
    assert sent.tasks == ["2a", "2b"], "another attempt"
    ray.results["2b"] = ray.exceptions.RayTaskError("no such file: dreamlab")
    assert sent.poll() is None
    assert sent.poll() == "failed"
    assert sent.job.record()["error"] == ["no such file: dreamlab"]


def test_a_ray_node_whose_machine_is_gone_is_not_waited_for(tmp_path, monkeypatch):
    """Ray gives up a machine minutes before it gives up what ran there."""
    monkeypatch.setattr(ray_launch, "RELEASE_S", 0.0)
    sent, ray = sent_to_two(tmp_path)
    files = [ray_launch._machine_file(sent.job, sent.token, n) for n in range(2)]
    for n, file in enumerate(files):
        file.write_text(json.dumps({"machine": f"m{n}"}))
    sent.cluster.dead = lambda: {"m7"}
    assert sent.poll() is None
    assert not sent.ended
    sent.cluster.dead = lambda: {"m1"}
    assert sent.poll() is None
    assert "1a" in ray.cancelled
    assert sent.poll() is None
    assert sent.tasks == ["2a", "2b"], "another attempt"
    assert not any(f.exists() for f in files)


def test_ray_nodes_that_ended_by_an_error_of_the_run_have_failed(tmp_path):
    sent, ray = sent_to_two(tmp_path)
    sent.job.write(status="failed", error=["EnvError: no."])
    ray.results |= {"1a": "failed", "1b": "interrupted"}
    assert sent.poll() == "failed"
    assert sent.job.record()["error"] == ["EnvError: no."]


def test_a_ray_job_that_waits_for_resources_can_be_interrupted(tmp_path):
    sent, ray = sent_to_two(tmp_path)
    sent.interrupt()
    sent.interrupt()
    assert ray.cancelled == ["1a", "1b"], "once"
    assert sent.poll() == "interrupted"


def test_a_ray_job_that_runs_is_asked_to_save_by_its_file_and_then_killed(tmp_path):
    sent, ray = sent_to_two(tmp_path)
    sent.job.write(attempts=1)
    sent.interrupt()
    assert ray.cancelled == []
    assert sent.job.stop_file.read_text() == ""
    sent.kill()
    assert sent.job.stop_file.read_text() == local.KILL


@pytest.mark.parametrize(("text", "ended"), [("", signal.SIGTERM), (local.KILL, signal.SIGKILL)])
def test_a_stop_file_ends_what_a_cluster_runs(text, ended, tmp_path):
    job = Script(tmp_path, ("import time\ntime.sleep(60)",), {})
    job.folder.mkdir(parents=True)
    job.stop_file.write_text(text)
    attempt = Attempt(job, BufferContext())
    assert carry_out(job, attempt) == "interrupted"
    assert attempt.child.returncode == -ended


# -- clusters -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_preempted_training_is_queued_again_and_ends_as_if_nothing_was(tmp_path, capfd):
    need("submitit")
    folder = tmp_path / "r"
    where = ["launcher.name=slurm", "launcher.cluster=local"]
    assert main(["train", *LONGER, *where, f"run.dir={folder}"]) == 0
    out = capfd.readouterr().out
    job = SingleJob(folder, (), {})
    number = int(job.record()["queue_id"])
    assert f"job {number}" in out
    assert f"kill {number}" in out
    wait_for(lambda: (folder / "metrics.jsonl").exists() and metrics(folder))
    (task,) = children(number)
    os.kill(task, signal.SIGUSR1)
    wait_for(lambda: job.manifest_status() == "finished" and not job.run_lock.held(), 180)
    events = [json.loads(e) for e in (folder / "events.jsonl").read_text().splitlines()]
    assert [e["stopped_by"] for e in events if e["event"] == "interrupted"] == ["SIGUSR1"]
    assert any(e["event"] == "resumed" for e in events)
    assert metrics(folder) == uninterrupted(tmp_path, *LONGER)


@pytest.mark.slow
@pytest.mark.parametrize(("grace", "saves"), [(90.0, True), (0.001, False)])
def test_a_training_that_is_ended_by_sigterm_goes_on_by_the_same_command(grace, saves, tmp_path):
    """It saves, if it can until its deadline; nobody queues it again, as after `scancel`."""
    need("submitit")
    folder = tmp_path / "r"
    often = (*LONGER, "checkpoint.every_frames=5_000")
    command = ["train", *often, "launcher.name=slurm", "launcher.cluster=local",
               f"launcher.grace_s={grace}", f"run.dir={folder}"]  # fmt: skip
    assert main(command) == 0
    job = SingleJob(folder, (), {})
    wait_for(lambda: [*folder.glob("checkpoints/0*/meta.json")])
    (task,) = children(int(job.record()["queue_id"]))
    os.kill(task, signal.SIGTERM)
    wait_for(lambda: not psutil.pid_exists(task) and not job.run_lock.held())
    events = [json.loads(e) for e in (folder / "events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events].count("interrupted") == saves
    assert job.manifest_status() != "finished"
    assert job.record()["attempts"] == 1
    assert main(command) == 0
    wait_for(lambda: job.manifest_status() == "finished" and not job.run_lock.held(), 180)
    assert metrics(folder) == uninterrupted(tmp_path, *often)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["limits.processes_per_node=2", "distributed.processes=2"])
def test_two_processes_that_are_preempted_go_on_together(option, tmp_path):
    need("submitit")
    two = ["launcher.name=slurm", "launcher.cluster=local", option]
    folder = tmp_path / "r"
    assert main(["train", *LONGER, *two, f"run.dir={folder}"]) == 0
    job = SingleJob(folder, (), {})
    wait_for(lambda: (folder / "metrics.jsonl").exists() and metrics(folder), 180)
    (task,) = children(int(job.record()["queue_id"]))
    os.kill(task, signal.SIGUSR1)
    wait_for(lambda: job.manifest_status() == "finished" and not job.run_lock.held(), 240)
    assert job.record()["attempts"] == 2
    events = [json.loads(e) for e in (folder / "events.jsonl").read_text().splitlines()]
    assert [e["stopped_by"] for e in events if e["event"] == "interrupted"] == ["SIGUSR1"]
    whole = [*LONGER, "distributed.processes=2", f"run.dir={tmp_path / 'whole'}"]
    assert main(["train", *whole]) == 0
    assert metrics(folder) == metrics(tmp_path / "whole")


@pytest.fixture
def tests_importable(monkeypatch):
    """What Ray starts after this finds the environments of the tests."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(Path(__file__).parents[2]), *filter(None, given)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def two_nodes():
    """A Ray cluster of two nodes beside its head, which runs nothing."""
    need("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    yield cluster, nodes
    import ray

    ray.shutdown()
    cluster.shutdown()


ONE, SPREAD = Limits(cpus=1), Limits(cpus=1, nodes=2)


def watched(job: SingleJob, cluster, act, limits: Limits = ONE, seconds: float = 240) -> int:
    """Run a job on a Ray cluster; call `act` once when it has trained a little."""
    config = LauncherConfig(name="ray", cluster=cluster.address)
    pool = JobPool(make_launcher(config, limits, 1, job.folder), 1)
    sweep = Sweep([job], pool, SweepProgress("t", 1), retry_failed=True)
    show, done = sweep.view.show, []
    before = len(metrics(job.run_folder)) if job.run_folder.exists() else 0

    def look(*args) -> None:
        show(*args)
        file = job.run_folder / "metrics.jsonl"
        if not done and file.exists() and len(metrics(job.run_folder)) > before:
            done.append(act())
        assert time.monotonic() < until

    until, sweep.view.show = time.monotonic() + seconds, look
    return sweep.run()


@pytest.mark.slow
def test_a_training_whose_ray_node_is_lost_goes_on_on_the_other(tmp_path, two_nodes):
    cluster, nodes = two_nodes
    job = SingleJob(tmp_path / "r", (*LONGER, "checkpoint.every_frames=2_000"), {})

    def lose() -> None:
        """Take the machine away on which the run is, with all that runs there."""
        found = holders(job.folder / "run.lock")
        parents = {int(Path(f"/proc/{p}/stat").read_text().split()[3]) for p in found}
        pids = {*found, *parents}
        for node in nodes:
            raylet = node.all_processes["raylet"][0].process.pid
            if pids & {*children(raylet)}:
                for pid in found:
                    os.kill(pid, signal.SIGKILL)
                cluster.remove_node(node, allow_graceful=False)
                return
        raise AssertionError("the run is on neither node")

    assert watched(job, cluster, lose) == 0
    assert job.record()["attempts"] == 2
    assert metrics(job.run_folder) == uninterrupted(tmp_path, *job.overrides)


@pytest.mark.slow
def test_a_training_that_is_preempted_on_ray_is_sent_again(tmp_path, two_nodes):
    cluster, _ = two_nodes
    job = SingleJob(tmp_path / "r", LONGER, {})

    def preempt() -> None:
        for pid in holders(job.folder / "run.lock"):
            if b"dreamlab" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGUSR1)

    assert watched(job, cluster, preempt) == 0
    assert job.record()["attempts"] == 2
    assert metrics(job.run_folder) == uninterrupted(tmp_path, *LONGER)


def ranks_on(node) -> dict[str, psutil.Process]:
    """Return the processes of a run on one of Ray's nodes, by rank."""
    found = {}
    for process in psutil.Process(raylet(node)).children(recursive=True):
        try:
            words, rank = process.cmdline(), process.environ().get("RANK")
        except psutil.Error:  # it has ended meanwhile
            continue
        if rank is not None and "train" in words and process.ppid() != raylet(node):
            found.setdefault(rank, process)
    return found


def raylet(node) -> int:
    return node.all_processes["raylet"][0].process.pid


TOGETHER = (*LONGER, "checkpoint.every_frames=2_000", "distributed.processes=2",
            "distributed.check_every_updates=1")  # fmt: skip
"""Both processes compare their weights after every update, and fail if they differ."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["0", "1"])
def test_one_run_on_two_ray_nodes_goes_on_after_a_process_was_killed(victim, tmp_path, two_nodes):
    cluster, nodes = two_nodes
    job = SingleJob(tmp_path / "r", TOGETHER, {})
    seen = []

    def kill() -> None:
        seen.append([ranks_on(node) for node in nodes])
        found = {rank: p for here in seen[0] for rank, p in here.items()}
        found[victim].kill()
        seen.append(time.monotonic())

    assert watched(job, cluster, kill, SPREAD) == 1
    assert time.monotonic() - seen[1] < 30
    assert sorted(sorted(here) for here in seen[0]) == [["0"], ["1"]], "one process on each"
    (reason,) = job.record()["error"]
    assert reason.startswith(f"rank {victim} was killed by SIGKILL")
    assert watched(job, cluster, lambda: None, SPREAD) == 0
    assert job.record()["attempts"] == 2
    assert "resuming" in (job.folder / "stdout.log").read_text(), "rank 0 is on the first node"
    assert not list(job.folder.glob("meeting_*"))
    assert main(["train", *TOGETHER, f"run.dir={tmp_path / 'whole'}"]) == 0
    assert metrics(job.run_folder) == metrics(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["0", "1"])
def test_one_run_on_two_ray_nodes_goes_on_on_a_third_if_one_is_lost(victim, tmp_path, two_nodes):
    cluster, nodes = two_nodes
    job = SingleJob(tmp_path / "r", TOGETHER, {})

    def lose() -> None:
        """Take one machine away, with all that runs there; another joins."""
        node = next(n for n in nodes if victim in ranks_on(n))
        for process in psutil.Process(raylet(node)).children(recursive=True):
            process.kill()
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1)

    assert watched(job, cluster, lose, SPREAD) == 0
    assert job.record()["attempts"] == 2
    assert main(["train", *TOGETHER, f"run.dir={tmp_path / 'whole'}"]) == 0
    assert metrics(job.run_folder) == metrics(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_run_on_two_ray_nodes_goes_on_on_a_third_if_one_no_longer_answers(tmp_path, two_nodes):
    """A partition: what runs there stops, its connections stay open, and nothing has died."""
    cluster, nodes = two_nodes
    job = SingleJob(tmp_path / "r", TOGETHER, {})
    frozen: list[psutil.Process] = []

    def partition() -> None:
        node = next(n for n in nodes if "1" in ranks_on(n))
        machine = psutil.Process(raylet(node))
        frozen.extend([machine, *machine.children(recursive=True)])
        for process in frozen:
            process.suspend()
        cluster.add_node(num_cpus=1)

    try:
        assert watched(job, cluster, partition, SPREAD, 600) == 0
    finally:
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    assert frozen
    assert job.record()["attempts"] == 2
    assert main(["train", *TOGETHER, f"run.dir={tmp_path / 'whole'}"]) == 0
    assert metrics(job.run_folder) == metrics(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_run_on_two_ray_nodes_is_preempted_as_a_whole(tmp_path, two_nodes):
    cluster, nodes = two_nodes
    job = SingleJob(tmp_path / "r", TOGETHER, {})

    def preempt() -> None:
        found = {rank: p for node in nodes for rank, p in ranks_on(node).items()}
        found["1"].send_signal(signal.SIGUSR1)

    assert watched(job, cluster, preempt, SPREAD) == 0
    assert job.record()["attempts"] == 2
    events = [json.loads(e) for e in (job.run_folder / "events.jsonl").read_text().splitlines()]
    assert [e["stopped_by"] for e in events if e["event"] == "interrupted"] == ["SIGUSR1"]
    assert main(["train", *TOGETHER, f"run.dir={tmp_path / 'whole'}"]) == 0
    assert metrics(job.run_folder) == metrics(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_run_on_two_ray_nodes_without_time_to_save_goes_on_from_before(tmp_path, two_nodes):
    cluster, nodes = two_nodes
    options = (*TOGETHER, "checkpoint.deadline_s=0.0001")
    job = SingleJob(tmp_path / "r", options, {})

    def preempt() -> None:
        found = {rank: p for node in nodes for rank, p in ranks_on(node).items()}
        found["1"].send_signal(signal.SIGUSR1)

    assert watched(job, cluster, preempt, SPREAD) == 0
    assert job.record()["attempts"] == 2
    events = [json.loads(e) for e in (job.run_folder / "events.jsonl").read_text().splitlines()]
    assert "interrupted" not in [e["event"] for e in events], "there was no time for that"
    assert main(["train", *TOGETHER, f"run.dir={tmp_path / 'whole'}"]) == 0
    assert metrics(job.run_folder) == metrics(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_error_on_one_of_two_ray_nodes_is_the_reason_of_all(
    tmp_path, tests_importable, two_nodes
):
    cluster, _ = two_nodes
    own = ("env.id=tests.sweeps.failing:BreaksOnRank1",)
    job = SingleJob(tmp_path / "r", (*TOGETHER, *own), {})
    assert watched(job, cluster, lambda: None, SPREAD) == 1
    record = job.record()
    assert record["attempts"] == 1, "an error would only be repeated"
    assert "the pole broke" in " ".join(record["error"])
    assert json.loads((job.run_folder / "manifest.json").read_text())["saved_frames"] >= 2_000
