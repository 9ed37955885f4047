"""The original's names, layouts and checkpoints."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.config import load
from dreamlab.core.errors import LabError
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.interop import dreamerv3, parity
from dreamlab.workflows.dreamer_v3 import DreamerV3, DreamerV3Config

BOTH = Spec(
    {
        "image": ArraySpec((32, 32, 3), "uint8"),
        "joints": ArraySpec((5,)),
        "kind": ArraySpec((), "int64", classes=3),
    },
    ArraySpec((2,), low=-1.0, high=1.0),
)
TINY = {
    "rssm": {"deter": 16, "hidden": 8, "stoch": 4, "classes": 4, "blocks": 4},
    "encoder": {"depth": 2, "mults": (1, 2, 2), "units": 8, "layers": 2},
    "decoder": {"depth": 2, "mults": (1, 2, 2), "units": 9, "layers": 1, "blocks": 4},
    "reward": {"units": 8, "num_bins": 15},
    "cont": {"units": 7},
    "actor": {"units": 8, "layers": 3},
    "critic": {"units": 6, "layers": 2, "num_bins": 13},
    "imagine": 3,
    "optimizer": {"lr": 1e-3, "warmup_steps": 0},
}
CONFIG = load(DreamerV3Config, TINY, "workflow")


def weights_of(agent: DreamerV3) -> dict[str, np.ndarray]:
    params = dict(agent.named_parameters())
    names = dreamerv3.official_names(agent)
    out = {v: dreamerv3.to_theirs(params[k], v) for k, v in names.items()}
    return out | {"retnorm/lo/value": np.float32(-1.5), "retnorm/hi/value": np.float32(2.5)}


def test_weights_go_out_and_come_back_unchanged():
    torch.manual_seed(0)
    agent, other = (DreamerV3(CONFIG, BOTH) for _ in range(2))
    dreamerv3.load_weights(other, weights_of(agent))
    for (name, a), (_, b) in zip(agent.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert (float(other.return_low), float(other.return_high)) == (-1.5, 2.5)


def test_sizes_are_read_off_the_weights():
    agent = DreamerV3(CONFIG, BOTH)
    found = dreamerv3.config_of(weights_of(agent), 4, imagine=3, optimizer=CONFIG.optimizer)
    assert found == CONFIG


def test_the_decoders_width_is_read_off_its_images_where_it_has_no_vectors():
    only = Spec({"image": BOTH.obs["image"]}, BOTH.action)
    weights = weights_of(DreamerV3(CONFIG, only))
    assert dreamerv3.sizes_of(weights, 4)["decoder"]["units"] == 9


def test_what_is_missing_is_named():
    agent = DreamerV3(CONFIG, BOTH)
    weights = weights_of(agent)
    del weights["dyn/dyngru/kernel"]
    with pytest.raises(LabError, match="dyn/dyngru/kernel"):
        dreamerv3.load_weights(agent, weights)


def write_fixture(folder, agent: DreamerV3) -> None:
    """Write a fixture in the original's format, as our own agent computes it."""
    b, t, c = 2, 4, agent.model.rssm.config
    rng = np.random.default_rng(0)
    obs = {
        "image": rng.integers(0, 256, (b, t, 32, 32, 3), dtype=np.uint8),
        "joints": rng.normal(size=(b, t, 5)).astype(np.float32),
        "kind": rng.integers(0, 3, (b, t)).astype(np.int32),
        "reward": rng.normal(size=(b, t)).astype(np.float32),
        **{k: np.zeros((b, t), bool) for k in ("is_first", "is_last", "is_terminal")},
    }
    obs["is_last"][0, 1] = obs["is_terminal"][0, 1] = obs["is_first"][0, 2] = True
    inputs = {f"obs/{k}": v for k, v in obs.items()}
    inputs["prev_action/action"] = rng.normal(size=(b, t, 2)).astype(np.float32)
    inputs["carry/deter"] = rng.normal(size=(b, c.deter)).astype(np.float32)
    inputs["carry/stoch"] = np.eye(4, dtype=np.float32)[rng.integers(0, 4, (b, c.stoch))]
    np.savez(folder / "inputs.npz", **inputs)
    np.savez(folder / "weights.npz", **weights_of(agent))
    (folder / "meta.json").write_text(json.dumps({"lr": 1e-3, "warmup": 0, "imagine": 3}))
    fixture = parity.Fixture(folder)
    ours = fixture.agent()
    for number in (1, 2):
        tensors = {k: torch.from_numpy(v) for k, v in obs.items()}
        flags = [tensors[k] for k in dreamerv3.FLAGS]
        seen_obs = {k: tensors[k] for k in BOTH.obs}
        with torch.no_grad():
            seen = ours.model.observe(seen_obs, fixture.action, flags[1], fixture.carry)
            latent, action = ours.imagine(3, seen.latent.flat())
        shape = (c.stoch, c.classes)
        samples = {
            "post/stoch": seen.latent.stoch.unflatten(-1, shape).numpy(),
            "imagine/stoch": latent.stoch.unflatten(-1, shape).numpy(),
            "imagine/action": action.numpy(),
        }
        seen, dream, losses = parity.run_update(ours, fixture, samples)
        out = parity.computed(ours, fixture, seen, dream)
        out |= {f"loss/{k.removeprefix('rec/')}": v for k, v in losses.items()}
        suffix = "" if number == 1 else "_step2"
        np.savez(folder / f"outputs{suffix}.npz", **{k: v.detach().numpy() for k, v in out.items()})
        ours.learn(losses)
        after = weights_of(ours)
        after |= {
            "retnorm/lo/value": ours.return_low.numpy(),
            "retnorm/hi/value": ours.return_high.numpy(),
        }
        np.savez(folder / f"weights_step{number}.npz", **after)


def test_a_fixture_of_vectors_and_images_together_agrees_until_it_is_changed(tmp_path):
    torch.manual_seed(0)
    write_fixture(tmp_path, DreamerV3(CONFIG, BOTH))
    lines = list(parity.check(tmp_path))
    assert all(line.ok for line in lines), [str(x) for x in lines if not x.ok]
    names = {line.name for line in lines}
    assert {
        "update 1: decoder/image",
        "update 2: loss/joints",
        "update 2: dec/imgout/bias",
    } <= names

    with np.load(tmp_path / "outputs.npz") as file:
        outputs = dict(file)
    outputs["prior/logit"] = outputs["prior/logit"] + 1e-3
    np.savez(tmp_path / "outputs.npz", **outputs)
    wrong = [line.name for line in parity.check(tmp_path) if not line.ok]
    assert wrong == ["update 1: prior/logit"]


def test_a_latent_is_masked_and_joined():
    latent = Latent(torch.ones(2, 3), torch.ones(2, 4))
    kept = latent.masked(torch.tensor([[1.0], [0.0]]))
    assert kept.feature.sum(-1).tolist() == [7.0, 0.0]
