"""Looks at a machine: what is installed, which environments run, what can be drawn and recorded."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch

from dreamlab.accel.before_torch import SWITCH, Mkl, slowed_down
from dreamlab.core.errors import LabError
from dreamlab.core.findings import Finding
from dreamlab.envs import rendering, suites

GB = 1024**3


@dataclass(frozen=True)
class Trial:
    """One environment that stands for a suite: how to make it, and what must be installed."""

    name: str
    module: str
    suite: str
    task: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


TRIALS = (
    Trial("classic", "pygame", "gym", "CartPole-v1"),
    Trial("atari", "ale_py", "atari", "pong"),
    Trial("box2d", "Box2D", "gym", "LunarLander-v3"),
    Trial("mujoco", "mujoco", "mujoco", "HalfCheetah-v5", {"obs": "both"}),
    Trial("dmc", "dm_control", "dmc", "walker_walk", {"obs": "both"}),
    Trial("crafter", "crafter", "crafter", "reward"),
    Trial("minigrid", "minigrid", "minigrid", "MiniGrid-Empty-5x5-v0"),
    Trial("memorymaze", "memory_maze", "memorymaze", "9x9"),
    Trial("procgen", "procgen", "procgen", "coinrun"),
    Trial("bsuite", "bsuite", "bsuite", "catch/0"),
    Trial("metaworld", "metaworld", "metaworld", "reach-v3"),
    Trial("pusht", "gym_pusht", "pusht", "PushT-v0"),
    Trial("robotics", "gymnasium_robotics", "gym", "FetchReach-v4"),
    Trial("ogbench", "ogbench", "gym", "pointmaze-medium-v0"),
    Trial("vizdoom", "vizdoom", "gym", "VizdoomBasic-v1"),
    Trial("popgym", "popgym", "gym", "popgym-RepeatPreviousEasy-v0"),
    Trial("pinpad", "dreamlab", "pinpad", "three"),
    Trial("minecraft", "minerl", "minecraft", "diamond"),
    Trial("dmlab", "deepmind_lab", "dmlab", "explore_goal_locations_small"),
)


def doctor(timeout_s: float = 90, trials: tuple[Trial, ...] = TRIALS) -> list[Finding]:
    """Return the state of this machine; takes about a second per installed suite."""
    found = [*_software(), *_resources(), _video(), *_drawing()]
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        found += pool.map(lambda trial: _tried(trial, timeout_s), trials)
    return found


def _software() -> Iterator[Finding]:
    where = f"{platform.system()} {platform.machine()}"
    yield Finding("ok", f"python {platform.python_version()} on {where}")
    yield Finding("ok", f"torch {torch.__version__}, gymnasium {gym.__version__}")
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        memory = gpu.total_memory / GB
        yield Finding(
            "ok", f"{count} GPU(s): {gpu.name}, {memory:.0f} GB, CUDA {torch.version.cuda}"
        )
    else:
        yield Finding("warning", "no CUDA device: training runs on the CPU")
    if slowed_down():
        level, uses = "ok" if Mkl.active else "warning", f"AVX-512 (unless {SWITCH}=0)"
        yield Finding(level, f"MKL on this AMD processor: {Mkl.why or uses}")


def _resources() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free / GB
    level = "ok" if free > 10 else "warning"
    yield Finding(level, f"{free:.0f} GB of disk space free in the working directory")
    memory = psutil.virtual_memory().available / GB
    level = "ok" if memory > 4 else "warning"
    yield Finding(level, f"{memory:.0f} GB of memory available, {os.cpu_count()} CPU cores")


def _video() -> Finding:
    """Encode a few frames as the logger would."""
    try:
        import av

        out = io.BytesIO()
        with av.open(out, "w", format="mp4") as container:
            stream: Any = container.add_stream("libx264", rate=15)
            stream.width = stream.height = 64
            stream.pix_fmt = "yuv420p"
            for _ in range(3):
                frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), "rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    except Exception as error:
        return Finding("warning", f"no videos, images instead: {type(error).__name__}: {error}")
    return Finding("ok", f"videos: av {av.__version__} encodes H.264")


def _drawing() -> Iterator[Finding]:
    if importlib.util.find_spec("mujoco") is None:
        return
    works = [b for b in rendering.BACKENDS if rendering.probe(b)]
    chosen = os.environ.get("MUJOCO_GL")
    if chosen and chosen not in works:
        yield Finding("warning", f"MUJOCO_GL is {chosen}, which did not render here")
    if works:
        yield Finding("ok", f"headless OpenGL: {', '.join(works)}")
    else:
        yield Finding("warning", "headless OpenGL does not work: no pixels from MuJoCo")


def _tried(trial: Trial, timeout_s: float) -> Finding:
    """Make, reset and step an environment in its own process, for OpenGL may crash it."""
    if not trial.installed:
        return Finding("ok", f"{trial.name}: not installed ({_how(trial)})")
    arguments = [trial.suite, trial.task, json.dumps(trial.options)]
    command = [sys.executable, "-c", "from dreamlab.envs.doctor import main; main()", *arguments]
    try:
        done = subprocess.run(
            command, timeout=timeout_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("error", f"{trial.name}: {trial.task} did not answer in {timeout_s:.0f} s")
    if done.returncode == 0:
        return Finding("ok", f"{trial.name}: {trial.task} runs")
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    why = said[-1] if said else f"exit code {done.returncode}"
    return Finding("error", f"{trial.name}: {trial.task} fails: {why}")


def _how(trial: Trial) -> str:
    """Return what to install, as the suite itself says it."""
    try:
        suites.make(trial.suite, trial.task, trial.options)
    except LabError as error:
        return str(error)
    return f"pip install 'dreamlab[{trial.name}]'"


def main() -> None:
    """Step the environment named on the command line; any fault ends the process."""
    env = suites.make(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    env.reset(seed=0)
    for _ in range(3):
        env.step(env.action_space.sample())
    env.close()
    os._exit(0)  # some OpenGL drivers crash while the interpreter shuts down
