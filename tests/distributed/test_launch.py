"""The command line starts several processes, and says so when one of them is gone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.launcher.api import LaunchConfig

from dreamlab import training
from dreamlab.cli import main
from dreamlab.commands import several
from dreamlab.config import to_yaml
from dreamlab.core import world
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.engine import loop_state, processes
from dreamlab.engine.accelerate import pick_device
from dreamlab.engine.signals import PREEMPTED, first_signal
from dreamlab.interop.strangers import read_config
from dreamlab.runs import verify
from dreamlab.runs.run import Run
from tests.helpers import config_of, metrics

PATIENCE_S = 240.0
WITHIN_S = 30.0
"""A process that is gone ends the others within seconds, also on a machine that is busy."""
OPTIONS = (
    "dqn_cartpole", "tiny=true", "training.total_frames=100_000", "checkpoint.every_frames=100",
    "checkpoint.every_s=0", "log.every_frames=100", "eval.episodes=1", "eval.video=false",
    "eval.every_frames=0", "device=cpu",
)  # fmt: skip
ENDING = (signal.SIGTERM, signal.SIGHUP)
PYTHON = (sys.executable, "-m", "dreamlab")


def start(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=Path.cwd())


def wait_for(condition, what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def checkpoints(folder: Path) -> set[str]:
    return {p.parent.name for p in folder.glob("checkpoints/0*/meta.json")}


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(p) for p in task.read_text().split()]
    return found


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_process_ends_all_with_the_reason_and_the_same_command_goes_on(tmp_path):
    folder, rng = tmp_path / "run", random.Random(0)
    command = (*PYTHON, "train", *OPTIONS, f"run.dir={folder}", "distributed.processes=2")
    for number, trains in ((1, False), (0, True), (1, True)):  # one is killed before it trains
        before, child = checkpoints(folder), start(*command)
        if trains:
            wait_for(lambda: checkpoints(folder) - before, "no new checkpoint")  # noqa: B023
        wait_for(lambda: len(children(child.pid)) == 2, "no processes")  # noqa: B023
        time.sleep(rng.uniform(0, 3))
        workers = children(child.pid)
        os.kill(workers[number], signal.SIGKILL)
        killed = time.monotonic()
        _, said = child.communicate(timeout=PATIENCE_S)
        assert time.monotonic() - killed < WITHIN_S
        assert child.returncode == 2
        assert f"rank {number}" in said
        assert "was killed by signal 9 (SIGKILL)" in said
        assert f"`dreamlab resume {folder}` resumes" in said or not (trains or checkpoints(folder))
        assert ("The last checkpoint is complete" in said) == bool(checkpoints(folder))
        assert said.count("LabError") == 1
        assert "Traceback" not in said
        assert all(map(ended, workers))
    last = start(*command)
    wait_for(lambda: b"resuming" in os.read(last.stdout.fileno(), 10_000), "it does not resume")
    last.send_signal(signal.SIGTERM)
    last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 130
    frames = [r["env_frames"] for r in metrics(folder)]
    assert frames == sorted(set(frames))


def events(folder: Path, kind: str) -> list[dict]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == kind]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGUSR1, PREEMPTED), *((n, processes.INTERRUPTED) for n in ENDING)],
)
def test_a_launcher_that_is_signaled_waits_until_all_have_saved(number, code, tmp_path):
    folder = tmp_path / "run"
    options = (*OPTIONS, "env.vector=async", "checkpoint.deadline_s=120")
    child = start(*PYTHON, "train", *options, f"run.dir={folder}", "distributed.processes=2")
    wait_for(lambda: checkpoints(folder), "no checkpoint")
    workers = children(child.pid)
    child.send_signal(number)
    _, said = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == code, said
    assert all(map(ended, workers)), "it left before its processes"
    assert said == ""
    assert [e["stopped_by"] for e in events(folder, "interrupted")] == [number.name]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["status"], manifest["stopped_by"]) == ("interrupted", number.name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_preempted_launcher_without_time_to_save_asks_to_be_queued_again_too(tmp_path):
    folder = tmp_path / "run"
    options = (*OPTIONS, "checkpoint.deadline_s=0.0001", "distributed.processes=2")
    child = start(*PYTHON, "train", *options, f"run.dir={folder}")
    wait_for(lambda: checkpoints(folder), "no checkpoint")
    workers = children(child.pid)
    child.send_signal(signal.SIGUSR1)
    _, said = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == PREEMPTED, said
    assert all(map(ended, workers))
    assert "was preempted before it had saved. The last checkpoint is complete" in said
    assert f"`dreamlab resume {folder}` resumes" in said
    assert "Traceback" not in said


def failed(codes: dict[int, int], folder: Path, *passed: str) -> int:
    failures = {k: SimpleNamespace(exitcode=c, pid=7) for k, c in codes.items()}
    return processes._failed(failures, str(folder), passed)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({0: PREEMPTED}, PREEMPTED),
        ({0: processes.PEER_LOST, 1: PREEMPTED}, PREEMPTED),
        ({0: -signal.SIGTERM, 1: -signal.SIGUSR1}, PREEMPTED),
        ({0: 2, 1: processes.PEER_LOST}, 2),
    ],
)
def test_the_launcher_tells_preemption_from_failure(codes, expected, tmp_path):
    assert failed(codes, tmp_path) == expected


def test_processes_that_are_stopped_before_they_train_have_not_failed(tmp_path):
    codes = {0: -signal.SIGTERM, 1: -signal.SIGTERM}
    assert failed(codes, tmp_path, "SIGTERM") == processes.INTERRUPTED
    assert failed({0: -signal.SIGHUP}, tmp_path, "SIGHUP") == processes.INTERRUPTED
    with pytest.raises(LabError, match="was killed by signal 15"):
        failed(codes, tmp_path)


LOST = processes.PEER_LOST


@pytest.mark.parametrize(
    ("codes", "text"),
    [  # in the order in which the agent met them; it ends the others by SIGTERM
        ({1: 1, 0: -15}, "rank 1 (process 7) ended with exit code 1"),
        ({0: 1, 1: 1}, "rank 0 (process 7) ended with exit code 1"),
        ({1: LOST, 0: -15}, "rank 1 (process 7) lost the connection to another process"),
        ({1: LOST, 0: LOST}, "rank 1 (process 7) lost the connection to another process"),
        ({0: -15, 1: LOST}, "rank 0 (process 7) was killed by signal 15"),
        ({1: LOST, 0: -9, 2: -15}, "rank 0 (process 7) was killed by signal 9"),
    ],
)
def test_the_launcher_names_the_process_that_ended_first(codes, text, tmp_path):
    with pytest.raises(LabError) as error:
        failed(codes, tmp_path)
    assert text in str(error.value)


def test_the_launcher_speaks_of_a_checkpoint_only_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv(processes.OURS, str(tmp_path / "code"))
    monkeypatch.setattr(world, "launched", lambda: world.World(0, 2))
    run = tmp_path / "experiments" / "mine"

    def said() -> str:
        with pytest.raises(LabError) as error:
            failed({0: -9}, tmp_path)
        return str(error.value)

    assert said().endswith("The run had not begun")
    processes.note_folder(run)
    assert f"No checkpoint had been saved: the same command with run.dir={run}" in said()
    (run / "checkpoints" / "000000000100").mkdir(parents=True)
    assert said().endswith(f"The last checkpoint is complete: `dreamlab resume {run}` resumes")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGUSR1, PREEMPTED), *((n, processes.INTERRUPTED) for n in ENDING)],
)
def test_a_signal_before_there_are_processes_ends_the_launcher(number, code):
    """In a process of its own: this one may have children, of other tests."""
    program = (
        "import signal; from dreamlab.engine import processes\n"
        f"with processes._passing_on([]): signal.raise_signal({int(number)})"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == code


def test_a_closed_terminal_is_left_to_the_launcher_and_not_to_the_agent():
    heard = processes._left_to_agent(LaunchConfig).get("signals_to_handle", "")
    assert "SIGHUP" not in heard


@pytest.mark.parametrize(
    ("received", "agreed"),
    [
        (["", ""], ""),
        (["", "SIGTERM"], "SIGTERM"),
        (["SIGTERM", "SIGUSR1"], "SIGUSR1"),
        (["SIGINT", ""], "SIGINT"),
    ],
)
def test_processes_agree_on_the_signal(received, agreed):
    assert first_signal(received) == agreed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torchrun_starts_the_same_run(tmp_path):
    short = [*OPTIONS, "training.total_frames=600"]
    ours = start(*PYTHON, "train", *short, f"run.dir={tmp_path / 'a'}", "distributed.processes=2")
    _, said = ours.communicate(timeout=PATIENCE_S)
    assert ours.returncode == 0, said
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    theirs = start(
        *torchrun, "--nproc-per-node", "2", "-m", "dreamlab", "train", *short,
        f"run.dir={tmp_path / 'b'}",
    )  # fmt: skip
    _, said = theirs.communicate(timeout=PATIENCE_S)
    assert theirs.returncode == 0, said
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["ppo_cartpole", "dqn_cartpole", "dreamer_cartpole"])
def test_compiled_updates_keep_the_weights_of_two_processes_the_same(name, tmp_path):
    words = (
        name, "tiny=true", "training.total_frames=600", "compile=true", "device=cpu",
        "distributed.check_every_updates=1",
        "distributed.processes=2", "eval.episodes=1", "eval.video=false",
    )  # fmt: skip
    child = start(*PYTHON, "train", *words, f"run.dir={tmp_path / 'run'}")
    _, said = child.communicate(timeout=800)
    assert child.returncode == 0, said


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("device=gpu", "there is no device 'gpu'. Did you mean 'cuda'"),
        ("devices=2 device=cpu", "devices: has no effect with device=cpu"),
        ("devices=2 distributed.processes=3", "contradict each other"),
        (
            "device=cuda:1 distributed.processes=2",
            "device: cuda:1 for 2 processes: use device=cuda",
        ),
        ("device=mps distributed.processes=2", "mps for 2 processes: use device=cuda"),
        ("distributed.timeout_s=5", "timeout_s has no effect with processes=1"),
        ("distributed.check_every_updates=5", "check_every_updates has no effect"),
        ("distributed.processes=0", "distributed.processes: must be between 1 and 4096"),
    ],
)
def test_an_option_without_effect_is_refused(word, text):
    with pytest.raises(ConfigError, match=text):
        config_of("+experiment=ppo_cartpole", *word.split())


@pytest.mark.parametrize(("there", "text"), [
    (0, "devices=4: needs 4 GPUs on this machine, which has none. Instead use devices=1 device=cpu "
        "for one process, or devices=1 device=cpu distributed.processes=4 for as many"),
    (2, "which has only 2. Instead use devices=2, or devices=1 device=cpu distributed.processes=4"),
])  # fmt: skip
def test_more_devices_than_gpus_are_refused_before_anything_is_launched(there, text, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    monkeypatch.setattr(processes, "launch", lambda *_: pytest.fail("it was launched"))
    config = config_of("+experiment=ppo_cartpole", "devices=4")
    with pytest.raises(ConfigError) as error, several.processes_of(config, ["train"]):
        pass
    assert text in str(error.value)


@pytest.mark.parametrize(("there", "device", "text"), [
    (0, "cuda", "device=cuda with 3 processes: needs 3 GPUs on this machine, which has none. "
        "Instead use device=cpu"),
    (2, "cuda", "which has only 2. Instead use distributed.processes=2, or device=cpu"),
    (1, "auto", "which has only 1. Instead use distributed.processes=1, or device=cpu"),
])  # fmt: skip
def test_more_processes_than_gpus_are_refused_before_anything_is_launched(
    there, device, text, monkeypatch, capsys
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    monkeypatch.setattr("torch.cuda.is_available", lambda: there > 0)
    monkeypatch.setattr(processes, "launch", lambda *_: pytest.fail("it was launched"))
    assert main(["train", "ppo_cartpole", "distributed.processes=3", f"device={device}"]) == 2
    assert capsys.readouterr().err.strip().endswith(text)


def test_processes_on_the_cpu_need_no_gpus(monkeypatch):
    started = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(processes, "launch", lambda *args: started.append(args[1]) or 0)
    for device in ("cpu", "auto"):
        config = config_of(
            "+experiment=ppo_cartpole", "distributed.processes=3", f"device={device}"
        )
        with several.processes_of(config, ["train"]) as here:
            assert not here.mine
    assert started == [3, 3]


def test_options_of_several_processes_have_an_effect_with_devices():
    config = config_of("+experiment=ppo_cartpole", "devices=2", "distributed.timeout_s=5")
    assert (config.processes, config.distributed.timeout_s) == (2, 5)


def run_of_gpus(folder: Path, *more: str) -> None:
    """Make what a run with two GPUs leaves behind, as far as a machine without any can."""
    words = ("+experiment=ppo_cartpole", *SMALL, f"run.dir={folder}", "device=cpu")
    training.train(config_of(*words))
    of_gpus = config_of(*words[:-1], "devices=2", *more)
    (folder / "config.yaml").write_text(to_yaml(of_gpus))


SMALL = ("tiny=true", "training.total_frames=600", "eval.episodes=1", "eval.video=false")


@pytest.mark.parametrize("there", [0, 1])
@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("device=cpu", 2),
        ("devices=1 device=cpu", 1),
        ("devices=1 device=cpu distributed.processes=2", 2),
        ("distributed.processes=3 device=cpu", 3),
    ],
)
def test_a_run_of_gpus_is_resumed_on_the_cpu(
    there, device, words, number, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    launched = []
    monkeypatch.setattr(processes, "launch", lambda *args: launched.append(args[1]) or 0)
    monkeypatch.setattr(training, "resume", lambda *args: launched.append(1) or (None, ""))
    monkeypatch.setattr(training, "exit_code", lambda *args: 0)
    config = config_of("+experiment=ppo_cartpole", "devices=2", f"device={device}")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert main(["resume", str(tmp_path)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "devices=1 device=cpu distributed.processes=2 for as many processes on the CPU" in said
    assert main(["resume", str(tmp_path), *words.split()]) == 0, capsys.readouterr().err
    assert launched == [number]


def test_a_run_of_gpus_goes_on_in_one_process_on_the_cpu(tmp_path, capsys):
    run_of_gpus(tmp_path, "device=cuda")
    longer = ["devices=1", "device=cpu", "training.total_frames=1200"]
    assert main(["resume", str(tmp_path), *longer]) == 0, capsys.readouterr().err
    assert metrics(tmp_path)[-1]["env_frames"] >= 1200
    kept = read_config(tmp_path, trust_code=False)
    assert (kept.device, kept.devices, kept.processes) == ("cpu", 1, 1), "from now on"
    assert main(["resume", str(tmp_path)]) == 0


def test_a_run_that_moves_to_another_kind_of_device_is_no_longer_exact(
    tmp_path, monkeypatch, capsys
):
    """What was computed on a GPU cannot be had here: the checkpoint only says so."""
    words = ("+experiment=ppo_cartpole", *SMALL, "device=cpu")
    with monkeypatch.context() as patched:
        patched.setattr(loop_state, "_device", lambda loop: "cuda")
        training.train(config_of(*words, f"run.dir={tmp_path / 'moved'}"))
    training.train(config_of(*words, f"run.dir={tmp_path / 'stayed'}"))
    for name, text in (("moved", "continuing on cpu instead of cuda"), ("stayed", "")):
        capsys.readouterr()
        assert main(["resume", str(tmp_path / name), "training.total_frames=1200"]) == 0
        said = capsys.readouterr().out
        assert text in said if text else "instead of" not in said
    moved, stayed = (Run(tmp_path / name) for name in ("moved", "stayed"))
    assert (moved.manifest["exact_resume"], stayed.manifest["exact_resume"]) == (False, True)
    row = ("device", "cuda, then cpu (not exact)", "the same throughout")
    assert row in verify.surroundings(moved)
    assert main(["verify", str(moved.folder)]) == 2
    assert "checkpoint saved after that" in capsys.readouterr().err
    assert "resume" not in [r[0] for r in verify.surroundings(moved)]
    assert main(["resume", str(tmp_path / "moved"), "training.total_frames=1800"]) == 0
    assert Run(tmp_path / "moved").manifest["exact_resume"] is False, "not even later"


def test_what_contradicts_itself_is_refused_on_resume(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(to_yaml(config_of("+experiment=ppo_cartpole")))
    for words, text in (
        ("devices=2 distributed.processes=3", "contradict each other"),
        ("devices=2 device=cpu", "devices: has no effect with device=cpu"),
        ("device=gpu", "Did you mean 'cuda'"),
        ("seed=3", "device=NAME can be changed"),
    ):
        assert main(["resume", str(tmp_path), *words.split()]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_another_number_of_processes_resumes_by_the_command_line(tmp_path, capfd):
    """From one process of a run of two GPUs to two on the CPU, to three, to one."""
    run_of_gpus(tmp_path)
    for count, words in enumerate(
        ("devices=1 device=cpu distributed.processes=2", "distributed.processes=3",
         "distributed.processes=1")
    ):  # fmt: skip
        frames = 1200 + 600 * count
        more = [*words.split(), f"training.total_frames={frames}"]
        assert main(["resume", str(tmp_path), *more]) == 0, capfd.readouterr().err
        assert metrics(tmp_path)[-1]["env_frames"] >= frames
        now = {"1": "1 process"}.get(number := words.rpartition("=")[2], f"{number} processes")
        assert f"continuing with {now} instead of" in capfd.readouterr().out


def test_on_several_machines_each_needs_gpus_for_its_own_processes(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    here = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    processes.check_devices("auto", 4, 4)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ConfigError, match="needs 2 GPUs on this machine, which has only 1"):
        processes.check_devices("auto", 4, 4)


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="cuda:97 is not"):
        pick_device("cuda:97")
