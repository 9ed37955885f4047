"""Every example runs as a user would run it, in a folder of its own, and is short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHORT = {"train_in_a_dream": ["training.total_frames=800"]}  # a minute otherwise
LONG = {
    "clone",
    "compare_runs",
    "predict",
    "tune_ask_tell",
    "agent_actor_critic",
    "agent_diffusion_rl",
    "agent_imitation",
    "curriculum",
    "swap_network",
    "swap_world_model_parts",
    "train_and_evaluate",
    "train_in_a_dream",
}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 6


def examples() -> list[Any]:
    slow = pytest.mark.slow
    return [pytest.param(p, marks=[slow] * (p.stem in LONG), id=p.stem) for p in EXAMPLES]


@pytest.mark.parametrize("path", examples())
def test_it_runs(path, tmp_path):
    env = {**os.environ, "SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "Agg"}
    command = [sys.executable, path, *SHORT.get(path.stem, [])]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.glob("experiments/*")), "it left no run"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_it_is_one_idea_in_sixty_lines(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 60
    assert lines[0].startswith('"""')
