"""Run folders made by hand, and work done in a process of its own."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

NOBODY = 65534


def make(folder: Path, lr: float = 1e-3, **manifest: Any) -> Path:
    """Write a run directory without training anything."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {"id": f"{abs(hash(folder.name)):016x}"[:16], "name": folder.name, "seed": 0}
    known |= {"created": "2026-01-02T03:04:05+0000", "status": "finished", "env_frames": 100}
    config = {
        "workflow": {"_target_": "dreamlab.workflows.ppo.PPO", "lr": lr, "hidden": [8, 8]},
        "env": {"id": "CartPole-v1", "size": None, "gray": False},
        "run": {"dir": None, "tags": []},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "manifest.json").write_text(json.dumps({**known, **manifest}))
    return folder


def fork(work: Callable[[], Any]) -> int:
    """Start `work` in a child process; return its id."""
    if child := os.fork():
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def finish(*children: int) -> None:
    """Wait for children; fail if one of them failed."""
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)


def as_nobody(work: Callable[[], Any]) -> None:
    """Do `work` as a user who may not write what others own, even if we may write everything."""

    def inside() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        work()

    finish(fork(inside))
