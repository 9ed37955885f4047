"""Threads and determinism: what a seed gives does not depend on the machine's number of cores."""

from __future__ import annotations

import os

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


def test_a_run_takes_no_more_cores_than_it_was_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for given, taken in (("", 8), ("3", 3), ("3,2", 3), ("64", 8), ("none", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert accelerate.cores() == taken
