"""An environment that raises, exits, dies or hangs is one error that names it; nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from dreamlab.cli import main
from dreamlab.core.errors import EnvError, Stopped
from dreamlab.core.rng import derive
from dreamlab.envs import workers
from dreamlab.envs.vector import EnvConfig, Envs
from tests.helpers import metrics, open_loop


class OddError(Exception):
    """One that cannot be sent to another process."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd")
        self.lock = threading.Lock()


def spin() -> None:
    while True:
        pass


def stuck() -> None:
    """Stop like code that never comes back to Python."""
    os.kill(os.getpid(), signal.SIGSTOP)


def die(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def throw(error: BaseException) -> None:
    raise error


DEEDS = {
    "error": lambda: throw(ValueError("the motor is off")),
    "odd": lambda: throw(OddError(1, 2)),
    "exit": lambda: sys.exit(0),
    "ctrl-c": lambda: throw(KeyboardInterrupt()),
    "os exit": lambda: os._exit(3),
    "killed": lambda: die(signal.SIGKILL),
    "segfault": lambda: die(signal.SIGSEGV),
    "sleep": lambda: time.sleep(600),
    "spin": spin,
    "stuck": stuck,
}


class Misbehaves(gym.Env[Any, Any]):
    """Does a deed in its third step, or its first reset, in the episode that has this seed."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, deed: str, at: str = "step", victim: int = -1, unless: str = "") -> None:
        self.deed, self.at, self.victim, self.unless = deed, at, victim, unless

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.guilty = 0, self.victim in (seed, -1)
        self._maybe("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 3:
            self._maybe("step")
        return np.zeros(2, np.float32), 1.0, False, self.count >= 6, {}

    def _maybe(self, at: str) -> None:
        if self.at == at and self.guilty and not (self.unless and Path(self.unless).exists()):
            DEEDS[self.deed]()


def step_through(envs: Envs, steps: int = 4) -> None:
    envs.reset()
    for _ in range(steps):
        envs.step(np.zeros(envs.num_envs, np.int64))


def play(vector: Any, deed: str, at: str = "step", timeout_s: float = 300.0) -> tuple[str, Any]:
    """Step two environments of which the second misbehaves; return the error and the vector."""
    victim = derive(0, 1, 0) % 2**31
    options = {"deed": deed, "at": at, "victim": victim}
    config = EnvConfig("tests.envs.test_guard:Misbehaves", "gym", options, 2, vector)
    envs = Envs(EnvConfig(**{**vars(config), "step_timeout_s": timeout_s}), seed=0)
    with pytest.raises(EnvError) as caught:
        step_through(envs)
    envs.close()
    return str(caught.value), envs.vec


@pytest.fixture
def heard():
    """As in a run, where Ctrl-C is a request and not an exception."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


SAID = {
    "error": "ValueError: the motor is off",
    "odd": "OddError: odd",
    "exit": "SystemExit: 0",
    "ctrl-c": "KeyboardInterrupt",
}


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("vector", "at", "deed"),
    [
        *(("sync", at, deed) for at in ("step", "reset") for deed in SAID),
        *(("async", "step", deed) for deed in SAID),
        ("async", "reset", "exit"),
    ],
)
def test_whatever_it_raises_is_one_error_with_its_number(vector, at, deed, capfd):
    text, _ = play(vector, deed, at)
    seed = derive(0, 1, 0) % 2**31
    place = f"step 3, episode with seed {seed}" if at == "step" else f"reset with seed {seed}"
    assert text.startswith(f"env 1: {place}: {SAID[deed]}")
    assert "test_guard.py:" in text
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("os exit", "env 1: its process ended with exit code 3 in step 3 of this process"),
        ("killed", "env 1: its process was killed by SIGKILL in step 3 of this process"),
        ("segfault", "env 1: its process was killed by SIGSEGV in step 3 of this process"),
    ],
)
def test_a_process_that_dies_is_named_with_the_reason(deed, words):
    text, vec = play("async", deed)
    assert text == words
    assert not any(p.is_alive() for p in vec.processes)


def test_a_process_that_dies_in_reset_is_named():
    text, _ = play("async", "os exit", "reset")
    assert text == "env 1: its process ended with exit code 3 in reset"


@pytest.mark.parametrize(
    ("vector", "deed", "at"),
    [("sync", "sleep", "step"), ("sync", "spin", "reset"), ("async", "sleep", "step")],
)
def test_one_that_hangs_is_interrupted_and_named(vector, deed, at):
    text, vec = play(vector, deed, at, timeout_s=0.5)
    assert text.startswith("env 1: step 3" if at == "step" else "env 1: reset with seed")
    assert text.endswith("no answer within 0.5 s (env.step_timeout_s)")
    if vector == "async":
        assert not any(p.is_alive() for p in vec.processes)


def test_one_that_hangs_outside_of_python_is_ended(monkeypatch):
    monkeypatch.setattr(workers, "GRACE_S", 1.0)
    text, vec = play("async", "stuck", timeout_s=0.5)
    assert text == "env 1: its process did not respond within 1.5 s in step 3 of this process"
    assert not any(p.is_alive() for p in vec.processes)


def test_a_process_killed_from_outside_while_the_training_goes_on_is_named():
    envs = Envs(EnvConfig("counting", "dummy", num_envs=3, vector="async"), seed=0)
    envs.reset()
    os.kill(envs.vec.processes[2].pid, signal.SIGKILL)
    envs.vec.processes[2].join()
    with pytest.raises(EnvError, match="env 2: its process was killed by SIGKILL"):
        envs.step(np.zeros((3, 1), np.float32))
    assert not any(p.is_alive() for p in envs.vec.processes)


def test_a_time_limit_of_zero_waits(monkeypatch):
    monkeypatch.setitem(DEEDS, "sleep", lambda: time.sleep(0.7))
    options = {"deed": "sleep"}
    config = EnvConfig("tests.envs.test_guard:Misbehaves", "gym", options, step_timeout_s=0.0)
    step_through(Envs(config, seed=0))


@pytest.mark.usefixtures("heard")
def test_the_users_own_wish_to_stop_is_no_error_of_the_environment(monkeypatch):
    monkeypatch.setitem(DEEDS, "error", lambda: throw(Stopped()))
    envs = Envs(EnvConfig("tests.envs.test_guard:Misbehaves", options={"deed": "error"}), 0)
    with pytest.raises(Stopped):
        step_through(envs)


class Quits(Misbehaves):
    def __init__(self) -> None:
        sys.exit(0)


class Old(Misbehaves):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


def test_one_that_exits_while_it_is_made_is_an_error():
    with pytest.raises(EnvError, match=r"env 0: making 'tests.*Quits' failed: SystemExit: 0"):
        Envs(EnvConfig("tests.envs.test_guard:Quits"), 0)


def test_an_answer_of_the_wrong_form_is_an_error_with_a_name():
    envs = Envs(EnvConfig("tests.envs.test_guard:Old", options={"deed": "error"}), 0)
    envs.reset()
    with pytest.raises(EnvError, match=r"env 0: step 1.*instead of a tuple of 5"):
        envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(("vector", "deed"), [("sync", "exit"), ("async", "killed")])
def test_a_run_ends_with_one_message_and_goes_on_once_the_fault_is_gone(
    vector, deed, tmp_path, capsys
):
    mended = tmp_path / "mended"
    late = derive(derive(0, 0), 1, 10) % 2**31  # the eleventh episode of the second environment
    options = (
        "+experiment=ppo_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=160",
        "log.every_frames=20", "eval.episodes=1", "eval.video=false", "device=cpu",
        "checkpoint.every_frames=40", "env.id=tests.envs.test_guard:Misbehaves",
        f"env.options={{deed: {deed}, victim: {late}, unless: {mended}}}", f"env.vector={vector}",
        "log.terminal=off",
    )  # fmt: skip
    assert main(["train", *options, f"run.dir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("EnvError: env 1: ")
    assert len(said.splitlines()) == 1
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    last = [json.loads(x) for x in (tmp_path / "run" / "events.jsonl").read_text().splitlines()][-1]
    assert last["event"] == "failed"
    assert "Traceback" in last["traceback"]
    mended.touch()
    assert main(["resume", str(tmp_path / "run")]) == 0
    open_loop(tmp_path / "whole", *options).run()
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
