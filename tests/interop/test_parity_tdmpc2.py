"""Fixtures of TD-MPC2 of every form agree, a wrong one does not, and a broken one is one line.

What the original would have recorded is computed here from its published formulas, with its names.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dreamlab.core.errors import LabError
from dreamlab.interop import parity

RECORDED = Path(__file__).parents[2] / "fixtures" / "tdmpc2_state"
A, OBS, TASKS, CRITICS, BINS, STEPS, BATCH = 3, 5, 4, 3, 21, 2, 4
DIMS = [3, 1, 2, 3]
Weights = dict[str, Tensor]
OPTIONS: dict[str, Any] = {
    "vmin": -10, "vmax": 10, "rho": 0.5, "simnorm_dim": 8, "log_std_min": -10, "log_std_max": 2,
    "consistency_coef": 20, "reward_coef": 0.1, "value_coef": 0.1, "termination_coef": 1,
}  # fmt: skip


# -- the original, by its formulas ----------------------------------------------------------------


def weights(tasks: bool, pixels: bool, episodic: bool) -> Weights:
    torch.manual_seed(3)
    out: Weights = {}
    wide, embedded = 64 if pixels else 16, 6 if tasks else 0

    def net(name: str, sizes: list[int], lead: tuple[int, ...] = (), normed: bool = False) -> None:
        for i, (a, b) in enumerate(pairwise(sizes)):
            out[f"{name}.{i}.weight"] = torch.randn(*lead, b, a) * 2 / math.sqrt(a)
            out[f"{name}.{i}.bias"] = torch.randn(*lead, b)
            if i < len(sizes) - 2 or normed:
                out[f"{name}.{i}.ln.weight"] = 1 + 0.3 * torch.randn(*lead, b)
                out[f"{name}.{i}.ln.bias"] = 0.3 * torch.randn(*lead, b)

    if tasks:
        out["_task_emb.weight"] = torch.randn(TASKS, embedded)  # norms above 1 are cut
    for i, (size, a) in enumerate([(7, 9), (5, 4), (3, 4), (3, 4)] if pixels else []):
        out[f"_encoder.rgb.{2 + 2 * i}.weight"] = torch.randn(4, a, size, size) / math.sqrt(a) / 3
        out[f"_encoder.rgb.{2 + 2 * i}.bias"] = torch.randn(4)
    if not pixels:
        net("_encoder.state", [OBS + embedded, 11, wide], normed=True)
    net("_dynamics", [wide + embedded + A, 12, 12, wide], normed=True)
    net("_reward", [wide + embedded + A, 12, 12, BINS])
    if episodic:
        net("_termination", [wide + embedded, 12, 12, 1])
    net("_pi", [wide + embedded, 12, 12, 2 * A])
    net("_Qs.params", [wide + embedded + A, 12, 12, BINS], (CRITICS,))
    return out


def simnorm(x: Tensor) -> Tensor:
    return F.softmax(x.unflatten(-1, (-1, 8)), -1).flatten(-2)


def net(w: Weights, name: str, x: Tensor, pick: int | None = None) -> Tensor:
    last = max(int(k.split(".")[len(name.split("."))]) for k in w if k.startswith(name + "."))
    for i in range(last + 1):
        get = lambda k: w[f"{name}.{i}.{k}"] if pick is None else w[f"{name}.{i}.{k}"][pick]  # noqa: B023, E731
        x = F.linear(x, get("weight"), get("bias"))
        if f"{name}.{i}.ln.weight" in w:
            x = F.layer_norm(x, x.shape[-1:], get("ln.weight"), get("ln.bias"))
            x = F.mish(x) if i < last else simnorm(x)
    return x


def images(w: Weights, x: Tensor) -> Tensor:
    lead, x = x.shape[:2], x.flatten(0, 1).float() / 255 - 0.5
    for i, stride in ((2, 2), (4, 2), (6, 2), (8, 1)):
        x = F.conv2d(x, w[f"_encoder.rgb.{i}.weight"], w[f"_encoder.rgb.{i}.bias"], stride)
        x = F.relu(x) if i < 8 else x
    return simnorm(x.flatten(1)).unflatten(0, lead)


def two_hot(x: Tensor, o: dict[str, Any]) -> Tensor:
    width = (o["vmax"] - o["vmin"]) / (BINS - 1)
    x = (x.sign() * x.abs().log1p()).clamp(o["vmin"], o["vmax"])
    low = ((x - o["vmin"]) / width).floor()
    share = (x - o["vmin"]) / width - low
    below = F.one_hot(low.long(), BINS) * (1 - share)[..., None]
    return below + F.one_hot((low.long() + 1) % BINS, BINS) * share[..., None]


def decode(logits: Tensor, o: dict[str, Any]) -> Tensor:
    x = (logits.softmax(-1) * torch.linspace(o["vmin"], o["vmax"], BINS)).sum(-1, keepdim=True)
    return x.sign() * x.abs().expm1()


def policy(w: Weights, x: Tensor, eps: Tensor, mask: Tensor, o: dict[str, Any]) -> Weights:
    mean, raw = net(w, "_pi", x).chunk(2, -1)
    low, high = o["log_std_min"], o["log_std_max"]
    log_std = (low + 0.5 * (high - low) * (raw.tanh() + 1)) * mask
    mean, noise = mean * mask, eps * mask
    action = (mean + noise * log_std.exp()).tanh()
    log_prob = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1, keepdim=True)
    log_prob -= (F.relu(1 - action**2) + 1e-6).log().sum(-1, keepdim=True)
    return {
        "pi_mean_pre_tanh": mean, "pi_mean": mean.tanh(), "pi_log_std": log_std, "pi_eps": eps,
        "pi_action": action, "pi_entropy": -log_prob,
        "pi_scaled_entropy": -log_prob * mask.sum(-1, keepdim=True),  # as in the recorded tensors
    }  # fmt: skip


def losses(out: Weights, inputs: Weights, o: dict[str, Any]) -> Weights:
    rho = o["rho"] ** torch.arange(STEPS).float()
    entropy = lambda logits, x: -(two_hot(x[..., 0], o) * logits.log_softmax(-1)).sum(-1)  # noqa: E731
    q = entropy(out["q_logits"], inputs["td_target"][None].expand(CRITICS, -1, -1, -1))
    found = {
        "consistency": (out["zs"][1:] - out["next_z"]).square().mean((1, 2)) @ rho / STEPS,
        "reward": entropy(out["reward_logits"], inputs["reward"]).mean(1) @ rho / STEPS,
        "value": q.mean((0, 2)) @ rho / STEPS,
    }
    if "termination_logits" in out:
        logits = out["termination_logits"]
        found["termination"] = F.binary_cross_entropy_with_logits(logits, inputs["terminated"])
    total = sum(o[f"{k}_coef"] * v for k, v in found.items())
    return {f"{k}_loss": v for k, v in found.items()} | {"total_loss": torch.as_tensor(total)}


def record(
    w: Weights, inputs: Weights, o: dict[str, Any], shift: Tensor | None = None
) -> dict[str, Tensor]:
    """Return what the original would have computed; images are shifted by (x, y)."""
    dims, emb = torch.full((BATCH,), A), torch.zeros(BATCH, 0)
    if "_task_emb.weight" in w:
        emb = F.embedding(inputs["task"].long(), w["_task_emb.weight"].clone(), max_norm=1.0)
        dims = torch.tensor(DIMS)[inputs["task"].long()]
    about = lambda x: torch.cat([x, emb.expand(*x.shape[:-1], -1)], -1)  # noqa: E731
    obs, action = inputs["obs"], inputs["action"]
    if shift is not None:
        padded = F.pad(obs.flatten(0, 1).float(), (3, 3, 3, 3), "replicate")
        at = zip(padded, shift.flatten(0, 1).tolist(), strict=True)
        cut = [x[:, dy : dy + 64, dx : dx + 64] for x, (dx, dy) in at]
        obs = torch.stack(cut).reshape(obs.shape)
    seen = images(w, obs) if obs.ndim == 5 else net(w, "_encoder.state", about(obs))
    zs = [seen[0]]
    for a in action:
        zs.append(net(w, "_dynamics", torch.cat([about(zs[-1]), a], -1)))
    x = torch.cat([about(torch.stack(zs[:-1])), action], -1)
    q = torch.stack([net(w, "_Qs.params", x, i) for i in range(CRITICS)])
    reward = net(w, "_reward", x)
    out = {
        "next_z": seen[1:], "zs": torch.stack(zs), "q_logits": q, "q_values": decode(q, o),
        "reward_logits": reward, "reward_values": decode(reward, o),
    }  # fmt: skip
    if "_termination.0.weight" in w:
        out["termination_logits"] = net(w, "_termination", about(out["zs"][1:]))
    mask = (torch.arange(A) < dims[:, None]).float()
    out |= policy(w, about(out["zs"]), torch.randn(STEPS + 1, BATCH, A), mask, o)
    scalars = torch.tensor([[-1e4], [0.0], [3.0], [1e9]])
    out |= {"two_hot/x": scalars, "two_hot/target": two_hot(scalars[:, 0], o)}
    return out | losses(out, inputs, o)


# -- folders --------------------------------------------------------------------------------------


def keys(w: Weights, o: dict[str, Any], old: bool) -> dict[str, Any]:
    """Return the weights as a checkpoint has them: of 2023, or later."""
    out: dict[str, Any] = {k: v for k, v in w.items() if not k.startswith("_Qs.")}
    for key in (k for k in w if k.startswith("_Qs.")):
        layer, _, leaf = key.removeprefix("_Qs.params.").partition(".")
        number = 4 * int(layer) + ("weight", "bias", "ln.weight", "ln.bias").index(leaf)
        theirs = (f"_Qs.params.{number}", f"_target_Qs.params.{number}")
        newer = (key, f"_detach_Qs_params.{layer}.{leaf}", f"_target_Qs_params.{layer}.{leaf}")
        out |= dict.fromkeys(theirs if old else newer, w[key])
    if not old:
        low, high = float(o["log_std_min"]), float(o["log_std_max"])
        out |= {"log_std_min": torch.tensor(low), "log_std_dif": torch.tensor(high - low)}
        out |= {"_Qs.params.__batch_size": torch.Size([CRITICS])}
        if "_task_emb.weight" in w:
            out["_action_masks"] = (torch.arange(A) < torch.tensor(DIMS)[:, None]).float()
    return out


def arrays(tensors: Weights) -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in tensors.items()}


def made(
    folder: Path, tasks: bool = False, pixels: bool = False, old: bool = False,
    episodic: bool = False, shifted: bool = False, **options: Any,
) -> Path:  # fmt: skip
    """Write a fixture of this form."""
    folder.mkdir(exist_ok=True)
    w, o = weights(tasks, pixels, episodic), {**OPTIONS, **options}
    shape = (STEPS + 1, BATCH)
    inputs = {
        "obs": torch.randint(0, 256, (*shape, 9, 64, 64)).byte()
        if pixels
        else torch.randn(*shape, OBS),
        "action": torch.rand(STEPS, BATCH, A) * 2 - 1,
        "reward": torch.randn(STEPS, BATCH, 1) * 3,
        "terminated": (torch.rand(STEPS, BATCH, 1) > 0.5).float(),
        "td_target": torch.randn(STEPS, BATCH, 1) * 3,
    }
    if tasks:
        inputs["task"] = torch.tensor([3, 1, 0, 1])
    shift = torch.randint(0, 7, (*shape, 2)) if shifted else None
    np.savez(folder / "outputs.npz", **arrays(record(w, inputs, o, shift)))
    np.savez(folder / "inputs.npz", **arrays(inputs))
    torch.save({"model": OrderedDict(keys(w, o, old))}, folder / "checkpoint.pt")
    meta = {**o, "num_bins": BINS, **({"action_dims": DIMS} if tasks else {})}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def change(folder: Path, file: str, **values: Any) -> None:
    """Put arrays into a file of a fixture; None removes one."""
    with np.load(folder / f"{file}.npz") as found:
        have = {**found, **values}
    np.savez(folder / f"{file}.npz", **{k: v for k, v in have.items() if v is not None})


def change_meta(folder: Path, *without: str, **values: Any) -> None:
    meta = json.loads((folder / "meta.json").read_text()) | values
    kept = {k: v for k, v in meta.items() if k not in without}
    (folder / "meta.json").write_text(json.dumps(kept))


def compared(folder: Path) -> set[str]:
    """Return what was compared; all of it agrees."""
    lines = list(parity.check(folder))
    assert all(line.ok for line in lines), [str(x) for x in lines if not x.ok]
    return {line.name for line in lines if line.compared}


def names(folder: Path) -> set[str]:
    with np.load(folder / "outputs.npz") as found:
        return set(found.files)


FORMS: dict[str, dict[str, Any]] = {
    "vectors": {},
    "episodic": {"episodic": True},
    "tasks": {"tasks": True},
    "episodic tasks": {"tasks": True, "episodic": True},
    "images": {"pixels": True},
    "shifted images": {"pixels": True, "shifted": True},
    "other options": {
        "episodic": True, "consistency_coef": 2, "reward_coef": 0.7, "value_coef": 3,
        "termination_coef": 0.3, "rho": 0.9, "log_std_min": -4, "log_std_max": 1.5, "vmin": -5,
        "vmax": 6,
    },
}  # fmt: skip


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_fixture_of_every_form_agrees(form, old, tmp_path):
    folder = made(tmp_path, old=old, **FORMS[form])
    assert compared(folder) == names(folder)


@pytest.mark.parametrize("old", [False, True])
def test_a_recorded_fixture_agrees_without_options_and_in_the_old_format(old, tmp_path):
    shutil.copytree(RECORDED, tmp_path / "f")
    model = torch.load(tmp_path / "f" / "checkpoint.pt")["model"]
    if old:
        w = {k: v for k, v in model.items() if not k.startswith(("_target", "_detach", "log_std"))}
        torch.save(keys(w, OPTIONS, old=True), tmp_path / "f" / "checkpoint.pt")
    (tmp_path / "f" / "meta.json").unlink()
    assert len(compared(tmp_path / "f")) == 21


@pytest.mark.parametrize("name", ["zs", "next_z"])
def test_images_without_recorded_latents_are_taken_as_they_are(name, tmp_path):
    folder = made(tmp_path, pixels=True)
    change(folder, "outputs", **{name: None})
    assert compared(folder) == names(folder)


def test_a_wrong_latent_is_not_taken_for_a_shifted_image(tmp_path):
    folder = made(tmp_path, pixels=True, shifted=True)
    with np.load(folder / "outputs.npz") as found:
        next_z = found["next_z"]
    next_z[1, 2, :8] = np.roll(next_z[1, 2, :8], 1)
    change(folder, "outputs", next_z=next_z)
    assert "next_z" in {line.name for line in parity.check(folder) if not line.ok}


@pytest.mark.parametrize("convert", [lambda x: np.moveaxis(x, 2, -1), lambda x: x.astype("f4")])
def test_images_may_have_channels_last_and_be_floats(convert, tmp_path):
    folder = made(tmp_path, pixels=True)
    with np.load(folder / "inputs.npz") as found:
        obs = convert(found["obs"])
    change(folder, "inputs", obs=obs)
    assert compared(folder) == names(folder)


WITHOUT: dict[str, set[str]] = {
    "td_target": {"value_loss", "total_loss"},
    "reward": {"reward_loss", "total_loss"},
    "terminated": {"termination_loss", "total_loss"},
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_needs_a_missing_input_is_listed(name, tmp_path):
    folder = made(tmp_path, episodic=True)
    change(folder, "inputs", **{name: None})
    assert compared(folder) == names(folder) - WITHOUT[name]
    notes = {x.name: str(x) for x in parity.check(folder) if not x.compared}
    assert notes.keys() == WITHOUT[name]
    assert all(f"not compared: the fixture lacks {name}" in note for note in notes.values())


def test_ends_are_only_needed_by_an_agent_that_predicts_them(tmp_path):
    folder = made(tmp_path)
    change(folder, "inputs", terminated=None)
    assert compared(folder) == names(folder)


def test_noise_that_is_missing_or_an_input(tmp_path):
    folder = made(tmp_path)
    with np.load(folder / "outputs.npz") as found:
        eps = found["pi_eps"]
    change(folder, "outputs", pi_eps=None)
    sampled = {"pi_action", "pi_entropy", "pi_scaled_entropy"}
    assert compared(folder) == names(folder) - sampled
    change(folder, "inputs", pi_eps=eps)
    assert compared(folder) == names(folder)


def test_what_is_not_recorded_or_not_known_is_listed(tmp_path):
    folder = made(tmp_path, episodic=True)
    gone = names(folder) - {"zs", "q_values", "total_loss"}
    change(folder, "outputs", **dict.fromkeys(gone), nobody=np.ones(3), text=np.array(["a"]))
    assert compared(folder) == {"zs", "q_values", "total_loss"}
    notes = {x.name: x.note for x in parity.check(folder) if not x.compared}
    assert notes.pop("nobody") == "dreamlab does not compute it"
    assert notes == dict.fromkeys(gone - {"pi_eps", "two_hot/x"}, "not recorded")


def test_ends_of_a_checkpoint_that_predicts_none_differ(tmp_path):
    folder = made(tmp_path)
    change(folder, "outputs", termination_logits=np.zeros((STEPS, BATCH, 1)))
    assert [x.name for x in parity.check(folder) if not x.ok] == ["termination_logits"]


@pytest.mark.parametrize("option", ["rho", "vmax", "log_std_max", "value_coef"])
def test_an_option_is_read_from_the_fixture(option, tmp_path):
    folder = made(tmp_path)
    change_meta(folder, **{option: OPTIONS[option] * 0.75})
    assert [x for x in parity.check(folder) if not x.ok]


# -- tasks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task", [[[3, 1, 0, 1]] * 3, [[3], [1], [0], [1]], [[[3], [1], [0], [1]]] * 3, [3.0, 1.0, 0, 1]]
)
def test_tasks_may_have_any_shape(task, tmp_path):
    folder = made(tmp_path, tasks=True)
    change(folder, "inputs", task=np.array(task))
    assert compared(folder) == names(folder)


@pytest.mark.parametrize("where", ["inputs", "meta", "name"])
def test_one_task_for_all_may_be_a_number(where, tmp_path):
    folder = made(tmp_path, tasks=True)
    with np.load(folder / "inputs.npz") as found:
        inputs = {k: torch.from_numpy(v) for k, v in found.items()} | {
            "task": torch.tensor([2] * 4)
        }
    np.savez(folder / "outputs.npz", **arrays(record(weights(True, False, False), inputs, OPTIONS)))
    change(folder, "inputs", task=np.array(2) if where == "inputs" else None)
    if where != "inputs":
        change_meta(folder, task=2 if where == "meta" else "hop", tasks=["a", "b", "hop", "d"])
    assert compared(folder) == names(folder)


def test_the_entries_of_actions_follow_from_the_policy_if_nothing_tells_them(tmp_path):
    folder = made(tmp_path, tasks=True, old=True)
    change_meta(folder, "action_dims")
    assert compared(folder) == names(folder)
    change(folder, "outputs", pi_log_std=None)
    assert "'action_dims'" in refused(folder)
    change(folder, "outputs", **{k: None for k in names(folder) if k.startswith("pi_")})
    assert compared(folder) == names(folder)


# -- broken ones ----------------------------------------------------------------------------------


def refused(folder: Path) -> str:
    with pytest.raises(LabError) as caught:
        list(parity.check(folder))
    text = str(caught.value)
    assert text.startswith(f"{folder} cannot be compared: ")
    assert "\n" not in text
    assert len(text) < 600
    return text


def model_of(folder: Path, **values: Any) -> None:
    state = torch.load(folder / "checkpoint.pt", weights_only=False)["model"] | values
    torch.save(
        {"model": {k: v for k, v in state.items() if v is not None}}, folder / "checkpoint.pt"
    )


NAN, LARGE = torch.full((12,), torch.nan), torch.full((12,), 1e39, dtype=torch.float64)
BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no task": (lambda f: change(f, "inputs", task=None), "lacks 'task'.*has 4 of them"),
    "an unknown task": (lambda f: change(f, "inputs", task=np.array([0, 1, 2, 4])), "0 to 3"),
    "half a task": (lambda f: change(f, "inputs", task=np.array([0, 1, 2, 0.5])), "0 to 3"),
    "tasks that change": (
        lambda f: change(f, "inputs", task=np.array([[0, 1, 2, 3], [1, 1, 1, 1]])), "0 to 3"
    ),
    "too many tasks": (lambda f: change(f, "inputs", task=np.zeros(7)), "one number or 4"),
    "a task in words": (
        lambda f: (change(f, "inputs", task=None), change_meta(f, task="x")), "'x'"
    ),
    "no observations": (lambda f: change(f, "inputs", obs=None), "no 'obs'"),
    "no actions": (lambda f: change(f, "inputs", action=None), "no 'action'"),
    "a step too few": (
        lambda f: change(f, "inputs", obs=np.zeros((2, 4, OBS))), r"not \(3, 4, 5\)"
    ),
    "other observations": (lambda f: change(f, "inputs", obs=np.zeros((3, 4, 9))), "'obs'.*4, 9"),
    "other actions": (lambda f: change(f, "inputs", action=np.zeros((2, 4, 9))), "'action'.*4, 9"),
    "other rewards": (lambda f: change(f, "inputs", reward=np.zeros((2, 5))), "'reward'.*2, 5"),
    "other noise": (lambda f: change(f, "outputs", pi_eps=np.zeros((3, 4, 9))), "'pi_eps'.*4, 9"),
    "more noise": (lambda f: change(f, "outputs", pi_eps=np.zeros((9, 4, 3))), "'pi_eps'.*9, 4"),
    "nothing": (lambda f: np.savez(f / "outputs.npz"), "nothing in it"),
    "nothing known": (lambda f: np.savez(f / "outputs.npz", a=np.ones(3)), "nothing in it"),
    "objects": (
        lambda f: np.savez(f / "inputs.npz", a=np.array([object()], dtype=object)),
        "inputs.npz cannot be read",
    ),
    "no inputs": (lambda f: (f / "inputs.npz").unlink(), "inputs.npz"),
    "cut outputs": (lambda f: (f / "outputs.npz").write_bytes(b"PK\3\4"), "not a zip file"),
    "no json": (lambda f: (f / "meta.json").write_text("{"), "meta.json"),
    "a list": (lambda f: (f / "meta.json").write_text("[]"), "meta.json"),
    "rho in words": (lambda f: change_meta(f, rho="half"), "rho"),
    "rho of a list": (lambda f: change_meta(f, rho=[0.5]), "rho"),
    "no range of values": (lambda f: change_meta(f, vmin=10), "low=10 must be below high=10"),
    "another simnorm": (lambda f: change_meta(f, simnorm_dim=7), "multiple of simnorm_dim=7"),
    "a wrong count of masks": (
        lambda f: (model_of(f, _action_masks=None), change_meta(f, action_dims=[1])), "list of 4"
    ),
    "masks with gaps": (
        lambda f: model_of(f, _action_masks=torch.tensor([[0.0, 1, 1]] * 4)), "_action_masks"
    ),
    "masks of others": (lambda f: model_of(f, _action_masks=torch.ones(2, 3)), "_action_masks"),
    "no checkpoint": (lambda f: (f / "checkpoint.pt").unlink(), "neither checkpoint.pt"),
    "no policy": (lambda f: model_of(f, **{"_pi.2.weight": None}), "'_pi.2.weight'"),
    "no norm": (lambda f: model_of(f, **{"_pi.1.ln.bias": None}), "lacks '_pi.1.ln.bias'"),
    "no encoder": (lambda f: model_of(f, **{"_encoder.state.0.weight": None}), "_encoder"),
    "no critics": (lambda f: model_of(f, **{"_Qs.params.0.weight": None}), "_Qs.params.0.weight"),
    "a hidden size that nothing fits": (
        lambda f: model_of(f, **{"_dynamics.0.weight": torch.ones(1, 1).expand(60_000, 17)}),
        "_dynamics.0.weight.*does not fit",
    ),
    "a scalar": (lambda f: model_of(f, **{"_reward.2.weight": torch.ones(())}), "unexpected"),
    "another size": (lambda f: model_of(f, **{"_pi.0.bias": torch.ones(9)}), "_pi.0.bias.*fit"),
    "a hidden size of 0": (
        lambda f: model_of(f, **{"_dynamics.0.weight": torch.ones(0, 25)}), "mlp_dim"
    ),
    "not a number": (lambda f: model_of(f, **{"_pi.0.bias": NAN}), "not a number"),
    "infinite": (lambda f: model_of(f, **{"_pi.0.bias": LARGE}), "infinite"),
    "more": (lambda f: model_of(f, **{"_extra.weight": torch.ones(3)}), "'_extra.weight'"),
    "no tensor": (lambda f: model_of(f, **{"_pi.0.bias": "x"}), "'_pi.0.bias' is not a tensor"),
    "newt": (lambda f: model_of(f, **{"_Qs.online._Qs.0.0.weight": torch.ones(1)}), "Newt"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_fixture_is_one_line(case, tmp_path):
    folder = made(tmp_path, tasks=True)
    spoil, reason = BROKEN[case]
    spoil(folder)
    with pytest.raises(LabError, match=reason):
        list(parity.check(folder))
    refused(folder)


def test_images_of_another_size_are_refused(tmp_path):
    folder = made(tmp_path, pixels=True)
    for shape in ((3, 4, 9, 32, 32), (3, 4, 3, 64, 64), (3, 4, 64)):
        change(folder, "inputs", obs=np.zeros(shape, np.uint8))
        refused(folder)


def test_one_broken_folder_does_not_hide_the_others(tmp_path, capsys, monkeypatch):
    good, wrong, broken = (made(tmp_path / k) for k in ("good", "wrong", "broken"))
    change(wrong, "outputs", zs=np.zeros((STEPS + 1, BATCH, 16)))
    change(good, "outputs", q_values=None)
    (broken / "checkpoint.pt").write_bytes(b"PK\3\4")
    folders = [str(f) for f in (broken, tmp_path / "none", good, wrong)]
    monkeypatch.setattr(sys, "argv", ["parity", *folders])
    assert parity.main() == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 2
    assert f"CheckpointError: {broken} cannot be compared" in err
    assert "zs" in out.partition("# wrong")[2]
    assert out.endswith("36 of 37 agree, 1 not compared\n")
    monkeypatch.setattr(sys, "argv", ["parity", folders[3]])
    assert parity.main() == 1
    monkeypatch.setattr(sys, "argv", ["parity", folders[2]])
    assert parity.main() == 0
