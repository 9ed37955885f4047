"""Threads and determinism: what a seed gives does not depend on the machine's number of cores."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from dreamlab import build
from dreamlab.config import compose, load_config
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.engine import accelerate


def test_a_seed_gives_the_same_weights_on_any_number_of_threads():
    config = load_config(compose(["+experiment=ppo_cartpole", "device=cpu"]))
    spec = Spec({"state": ArraySpec((4,))}, ArraySpec((), "int64", classes=2))
    before, weights = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            parameters = build.build_workflow(config, spec).parameters()
            weights.append(torch.cat([p.detach().flatten() for p in parameters]))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("name", "current"),
    [("cuda:1", [torch.device("cuda", 1)]), ("cuda", []), ("auto", []), ("cpu", [])],
)
def test_a_gpu_that_was_picked_is_the_current_one_before_anything_is_built(
    name, current, monkeypatch: pytest.MonkeyPatch
):
    """Streams and graphs are of the current GPU, wherever the weights are."""
    said: list[object] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", said.append)
    made = build._made

    def on_cpu(config: build.LabConfig, spec: Spec, device: torch.device):
        said.append("built")
        return made(config, spec, torch.device("cpu"))

    monkeypatch.setattr(build, "_made", on_cpu)
    config = load_config(compose(["+experiment=ppo_cartpole", f"device={name}"]))
    spec = Spec({"state": ArraySpec((4,))}, ArraySpec((), "int64", classes=2))
    build.build_workflow(config, spec)
    assert said == [*current, "built"]


def test_a_run_takes_no_more_cores_than_it_was_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for given, taken in (("", 8), ("3", 3), ("3,2", 3), ("64", 8), ("none", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert accelerate.cores() == taken


VECTOR = Spec({"state": ArraySpec((3,))}, ArraySpec((1,), low=-1.0, high=1.0))
CHOICE = Spec({"state": ArraySpec((4,))}, ArraySpec((), "int64", classes=2))
ATARI = Spec({"image": ArraySpec((84, 84, 4), "uint8")}, ArraySpec((), "int64", classes=6))
DOTS = Spec({"image": ArraySpec((16, 16, 3), "uint8")}, ArraySpec((), "int64", classes=4))


@pytest.mark.parametrize(
    ("experiment", "options", "spec", "rows", "threads"),
    [
        ("ppo_cartpole", [], CHOICE, 256, 1),
        ("dqn_cartpole", ["threads=0"], CHOICE, 64, 2),
        ("sac_pendulum", [], VECTOR, 512, 2),
        ("dqn_pong", [], ATARI, 64, 2),
        ("dreamer_pixels", [], DOTS, 272, 2),
        (
            "sac_pendulum",
            [f"workflow.{k}.hidden=[1024,1024]" for k in ("actor", "critic")],
            VECTOR,
            512,
            5,
        ),
        (
            "sac_pendulum",
            [f"workflow.{k}.hidden=[2048,2048]" for k in ("actor", "critic")],
            VECTOR,
            512,
            8,
        ),
        ("ppo_pong", [], ATARI, 256, 3),
    ],
)
def test_an_update_gets_as_many_threads_as_it_has_work_for(
    experiment, options, spec, rows, threads, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    config = load_config(compose([f"+experiment={experiment}", "device=cpu", *options]))
    workflow, before = build.build_workflow(config, spec), torch.get_num_threads()
    try:
        accelerate.set_up(config, workflow, rows)
        assert torch.get_num_threads() == threads
        accelerate.set_up(replace(config, threads=2), workflow, rows)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "20000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_the_command_tells_openmp_not_to_spin_before_torch_is_loaded(given, spins):
    code = (
        "import os, sys, click; from dreamlab import cli\n"
        "look = lambda: print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))\n"
        "cli.app.add_command(click.Command('look', callback=look)); cli.main(['look'])"
    )
    plain = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env={**plain, **given})
    assert done.stdout.split() == ["False", spins]
