"""The fixtures in this repository: our agents agree with them, and a wrong weight does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dreamlab.interop.parity import check

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(("name", "lines"), [("dreamerv3_proprio", 122), ("tdmpc2_state", 21)])
def test_our_agents_compute_what_the_originals_did(name, lines):
    found = list(check(FIXTURES / name))
    assert len(found) == lines
    assert not [line.name for line in found if not line.ok]


def test_another_weight_is_noticed(tmp_path):
    shutil.copytree(FIXTURES / "dreamerv3_proprio", tmp_path / "f")
    with np.load(tmp_path / "f" / "weights.npz") as file:
        weights = dict(file)
    weights["rew/head/logits/bias"] = weights["rew/head/logits/bias"] + np.float32(0.01)
    weights["rew/head/logits/bias"][0] += 0.1
    np.savez(tmp_path / "f" / "weights.npz", **weights)
    wrong = {line.name for line in check(tmp_path / "f") if not line.ok}
    assert "update 1: reward/logits" in wrong
    assert "update 1: tokens" not in wrong
