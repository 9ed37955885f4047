"""Runs with actors log in a process of their own: nothing is lost on the way, or it is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from dreamlab.build import make_sinks
from dreamlab.core.errors import LabError
from dreamlab.engine.actors.records import LogProcess
from dreamlab.engine.logger import About, LogConfig, Logger
from dreamlab.engine.observer import Observer
from tests.engine.inline_actors import put_inline
from tests.engine.test_actors import ACTORS, SAC
from tests.helpers import metrics, open_loop


class Full:
    """A sink whose disk is full from the second record on."""

    def __init__(self):
        self.records = 0

    def write(self, record):
        self.records += 1
        if self.records > 1:
            raise OSError(28, "No space left on device")

    def get_state(self):
        return {"pid": os.getpid(), "records": self.records}

    def close(self):
        pass


def make_full():
    return [Full()]


def logger_of(folder, **options):
    folder.mkdir(exist_ok=True)
    make = partial(make_sinks, LogConfig(**options), About("test", folder))
    remote = LogProcess(make, [type(s).__name__ for s in make()])
    return Logger(remote.sinks), remote


def lines(folder):
    return [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]


def test_records_arrive_in_order_and_are_cut_back_to_a_state(tmp_path):
    logger, remote = logger_of(tmp_path / "r")
    record = {"env_frames": 1.0, "decisions": 1.0, "updates": 0.0}
    logger.flush(record)
    record["env_frames"] = 2.0  # the first one must not change any more
    state = logger.get_state()
    logger.flush(record)
    assert state["sinks"] == {"Jsonl": {"bytes": len(json.dumps(record)) + 1}}
    logger.set_state(state)
    logger.flush({**record, "env_frames": float("nan")})
    process = remote.process
    assert process.pid != os.getpid()
    logger.close()
    assert not process.is_alive()
    assert [x["env_frames"] for x in lines(tmp_path / "r")] == [1.0, "nan"]


def test_an_error_of_a_sink_is_told_with_the_next_call():
    logger = Logger(LogProcess(make_full, ["Full"]).sinks)
    logger.flush({})
    state = logger.get_state()["sinks"]["Full"]
    assert state["records"] == 1
    assert state["pid"] != os.getpid()
    logger.flush({})
    with pytest.raises(LabError, match=r"logging failed: OSError: .*No space left on device"):
        logger.get_state()
    logger.close()


def test_a_learner_waits_at_the_end_for_what_was_not_written_yet():
    logger = Logger(LogProcess(make_full, ["Full"]).sinks)
    logger.flush({})
    logger.flush({})
    with pytest.raises(LabError, match="No space left on device"):
        logger.close()


def test_trackers_get_their_records_in_the_other_process(tmp_path):
    pytest.importorskip("tensorboard")
    logger, _ = logger_of(tmp_path / "r", tensorboard=True)
    logger.flush({"env_frames": 7.0, "decisions": 7.0, "updates": 0.0})
    logger.ended({"eval/return": 1.0})
    assert logger.get_state()["sinks"]["TensorBoard"] == {"frames": 7}
    logger.close()
    assert list((tmp_path / "r" / "tensorboard").glob("events.*"))


class KillLogging(Observer):
    """Kills the process that logs once there is a checkpoint."""

    def started(self, loop):
        self.loop, self.killed_at = loop, None

    def after(self, action):
        if self.killed_at is None and self.loop.counters.env_frames >= 150:
            self.loop.save()
            self.killed_at = self.loop.counters.env_frames
            process = self.loop.parts.logger.sinks[0].remote.process
            os.kill(process.pid, signal.SIGKILL)
            process.join()


def test_a_run_ends_when_its_logging_is_killed_and_goes_on_from_its_checkpoint(tmp_path):
    loop = open_loop(tmp_path / "r", *SAC, *ACTORS)
    put_inline(loop)
    loop.observers.add(killer := KillLogging())
    with pytest.raises(LabError, match="its process is gone: it was killed by SIGKILL") as error:
        loop.run()
    assert "the same command resumes from it" in str(error.value)
    again = open_loop(tmp_path / "r", *SAC, *ACTORS)
    put_inline(again)
    assert again.counters.env_frames == killer.killed_at
    assert again.run() == "finished"
    frames = [r["env_frames"] for r in metrics(tmp_path / "r")]
    assert frames == sorted(set(frames))
    assert frames[-1] == again.counters.env_frames


LEARNER = """
import os, signal, sys, time
from pathlib import Path
from tests.engine.test_log_process import logger_of
if __name__ == "__main__":
    logger, _ = logger_of(Path(sys.argv[1]))
    logger.get_state()
    for frames in range(20):
        logger.flush({"env_frames": float(frames)})
    time.sleep(0.2)  # the pipe has them
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_records_of_a_learner_that_was_killed_are_written(tmp_path):
    script = tmp_path / "learner.py"
    script.write_text(LEARNER)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(tmp_path / "r")]
    ended = subprocess.run(command, env=variables, check=False)
    assert ended.returncode == -signal.SIGKILL
    until = time.monotonic() + 10
    while len(lines(tmp_path / "r")) < 20:
        assert time.monotonic() < until, "records are missing"
        time.sleep(0.05)
