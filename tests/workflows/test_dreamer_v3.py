"""DreamerV3: parameter counts and the weight-free conformance numbers of the original."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import open_loop, run_for

from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.optim import optimizer_part
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, Step
from dreamlab.interop import dreamerv3
from dreamlab.workflows.dreamer_v3 import SIZES, DreamerV3, DreamerV3Config, Scales

PHASE = Phase("learn", ("update_agent",))
AT_ONCE = DreamerV3Config().optimizer.but(warmup_steps=0)
ADAM = {k: optimizer_part("adam", lr=1e-4) for k in ("actor_optimizer", "critic_optimizer")}
ADAM["optimizer"] = optimizer_part("adam", lr=1e-4)

WALKER = Spec(
    {"height": ArraySpec(()), "orientations": ArraySpec((14,)), "velocity": ArraySpec((9,))},
    ArraySpec((6,), low=-1.0, high=1.0),
)
CRAFTER = Spec({"image": ArraySpec((64, 64, 3), "uint8")}, ArraySpec((), "int64", classes=17))

# -- sizes ----------------------------------------------------------------------------------------

COUNTS = {
    "1m": 687_875, "12m": 10_498_259, "25m": 23_495_475, "50m": 41_658_259, "100m": 93_480_531,
    "200m": 165_965_075, "400m": 372_920_979,
}  # fmt: skip


def count(size: str, spec: Spec) -> int:
    with torch.device("meta"):
        agent = DreamerV3(load(DreamerV3Config, {"size": size}, "workflow"), spec)
    return sum(p.numel() for n, p in agent.named_parameters() if not n.startswith("slow."))


@pytest.mark.parametrize("size", SIZES)
def test_sizes_have_the_original_number_of_parameters(size):
    assert count(size, CRAFTER) == COUNTS[size]


@pytest.mark.parametrize(("size", "params"), [("1m", 640_867), ("12m", 9_738_019)])
def test_sizes_from_vectors(size, params):
    assert count(size, WALKER) == params


# -- conformance: the recipe of the specification, numbers of the original ------------------------

EXPECTED = {
    "proprio": {
        "total": 43.235096, "dyn": 8.698365, "rew": 3.021652, "con": 0.817045,
        "orientations": 15.164072, "height": 1.016694, "velocity": 11.735288,
        "policy": 0.037051, "value": 0.344903, "repval": 5.100624, "norm": 78.058186,
        "steps": [43.235096, 42.067348, 41.282871], "moved": [25.3068, 49.3715, 72.6732],
        "slow": [-2454.1076, -2459.4459, -2464.6802], "range": [0.001011, 0.004046],
    },
    "image": {
        "total": 1266.932007, "dyn": 10.724916, "rew": 3.224544, "con": 0.773232,
        "image": 1249.282104, "policy": -0.167546, "value": 0.426290, "repval": 5.320242,
        "norm": 2677.568567, "steps": [1266.932007, 1250.706909, 1238.089844],
        "moved": [26.5983, 51.3378, 74.8758], "slow": [-2454.2822, -2459.6258, -2464.8675],
        "range": [-0.011344, 0.000012],
    },
}  # fmt: skip


def recipe_weights(agent: DreamerV3) -> dict[str, np.ndarray]:
    """Return the weights that the specification draws with numpy."""
    params = dict(agent.named_parameters())
    ours = {v: k for k, v in dreamerv3.official_names(agent).items()}
    names = sorted(n for n in ours if not n.startswith("slowval/"))
    out: dict[str, np.ndarray] = {}
    for i, name in enumerate(names):
        shape = dreamerv3.to_theirs(params[ours[name]], name).shape
        draw = np.random.RandomState(1000 + i).standard_normal(shape)
        if name.endswith("/kernel"):
            value = draw * math.sqrt(1 / np.prod(shape[:-1]))
        elif name.endswith("/scale"):
            value = 1 + 0.1 * draw
        else:
            value = 0.1 * draw
            if name in ("rew/head/logits/bias", "val/head/logits/bias"):
                value = value - 0.18 * np.abs(np.arange(255) - 127)
        out[name] = value.astype(np.float32)
    slow = {n.replace("val/", "slowval/", 1): 0.9 * v for n, v in out.items() if n[:4] == "val/"}
    return out | slow


def recipe_batch(kind: str) -> tuple[Batch, Latent]:
    """Return the batch that the specification draws with numpy, and the state before it."""
    r = np.random.RandomState(7)
    if kind == "proprio":
        action = r.uniform(-1.5, 1.5, (2, 9, 6))
        obs = {"height": 2 * r.randn(2, 9), "orientations": 2 * r.randn(2, 9, 14)}
        reward = r.randn(2, 9)
        obs["velocity"] = 2 * r.randn(2, 9, 9)
        action = action.astype(np.float32)
        obs = {k: v.astype(np.float32) for k, v in obs.items()}
    else:
        action = r.randint(0, 17, (2, 9))
        obs = {"image": r.randint(0, 256, (2, 9, 64, 64, 3)).astype(np.uint8)}
        reward = r.randn(2, 9)
    deter = np.tanh(r.randn(2, 9, 512)).astype(np.float32)
    stoch = np.eye(4, dtype=np.float32)[r.randint(0, 4, (2, 9, 32))]
    first, last, terminal = (np.zeros((2, 9), bool) for _ in range(3))
    last[0, 3] = terminal[0, 3] = first[0, 4] = last[1, 5] = first[1, 6] = True
    tensors = [
        torch.from_numpy(x) for x in (action, reward.astype(np.float32), first, last, terminal)
    ]
    batch = Batch({k: torch.from_numpy(v) for k, v in obs.items()}, *tensors)
    start = Latent(torch.from_numpy(deter[:, 0]), torch.from_numpy(stoch[:, 0]).flatten(-2))
    return batch, start


def update(agent: DreamerV3, batch: Batch, start: Latent) -> tuple[dict, dict]:
    """Take one update in which every sample is replaced by the specification's choice."""
    rssm = agent.model.rssm

    def choose(latent: Latent) -> torch.Tensor:
        dist = agent.actor(latent.feature)
        return (
            dist.mode() if agent.spec.action.is_discrete else dist.mean + 0.5 * dist.log_std.exp()
        )

    zeros = lambda t, n: torch.zeros(t, n, rssm.config.stoch, rssm.config.classes)  # noqa: E731
    obs = {k: v[:, 1:] for k, v in batch.obs.items()}
    first, last, terminal = (x[:, 1:] for x in (batch.is_first, batch.is_last, batch.is_terminal))
    seen = agent.model.observe(obs, batch.action[:, :-1], first, start, zeros(8, 2))
    losses, _ = agent.model.losses(seen, obs, batch.reward[:, 1:], terminal)
    dream = agent.dream(seen.latent.flat(), choose, zeros(15, 16))
    more, _ = agent.actor_critic_losses(dream, seen.feature, batch.reward[:, 1:], last, terminal)
    losses = losses | more
    metrics = {k: v.detach() for k, v in agent.learn(losses).items()}
    return {k: v.detach() for k, v in losses.items()}, metrics


@pytest.mark.parametrize("kind", ["proprio", "image"])
def test_conformance_with_the_original(kind):
    expected = EXPECTED[kind]
    config = load(DreamerV3Config, {"size": "1m", "optimizer": AT_ONCE}, "workflow")
    agent = DreamerV3(config, WALKER if kind == "proprio" else CRAFTER)
    dreamerv3.load_weights(agent, recipe_weights(agent))
    batch, start = recipe_batch(kind)
    before = torch.cat([p.detach().flatten() for p in agent.optimizers["agent"].params])
    for i in range(3):
        losses, metrics = update(agent, batch, start)
        assert float(metrics["loss"]) == pytest.approx(expected["steps"][i], rel=1e-5)
        if i == 0:
            for name, value in losses.items():
                wanted = expected["dyn" if name == "rep" else name.removeprefix("rec/")]
                assert float(value.mean()) == pytest.approx(wanted, rel=2e-5)
            assert float(metrics["grad_norm"]) == pytest.approx(expected["norm"], rel=1e-4)
            assert [float(agent.return_low), float(agent.return_high)] == pytest.approx(
                expected["range"], abs=2e-6
            )
        now = torch.cat([p.detach().flatten() for p in agent.optimizers["agent"].params])
        moved = float((now - before).abs().double().sum())
        assert moved == pytest.approx(expected["moved"][i], rel=1e-3)
        slow = sum(float(p.double().sum()) for p in agent.slow.parameters())
        assert slow == pytest.approx(expected["slow"][i], rel=1e-5)


# -- switches -------------------------------------------------------------------------------------

PARTS = ("rssm", "encoder", "decoder", "reward", "cont", "actor", "critic")


def config(**options: Any) -> DreamerV3Config:
    """Return a small agent's config with some options changed."""
    tiny = load(DreamerV3Config, DreamerV3.tiny, "workflow")
    mults = {k: {"mults": (1, 1, 2)} for k in ("encoder", "decoder")}
    return load(
        DreamerV3Config, options, "workflow", load(DreamerV3Config, mults, "workflow", tiny)
    )


MIXED = Spec(
    {
        "image": ArraySpec((32, 32, 3), "uint8"),
        "joints": ArraySpec((3,)),
        "kind": ArraySpec((), "int64", classes=3),
    },
    ArraySpec((2,), low=-1.0, high=1.0),
)


def windows(agent: DreamerV3, b: int = 2, t: int = 5) -> Batch:
    torch.manual_seed(0)
    obs = {
        "image": torch.randint(0, 256, (b, t, 32, 32, 3), dtype=torch.uint8),
        "joints": torch.randn(b, t, 3),
        "kind": torch.randint(0, 3, (b, t)),
    }
    no = torch.zeros(b, t, dtype=torch.bool)
    classes = agent.spec.action.classes
    action = torch.randn(b, t, 2)
    if isinstance(classes, int):
        action = torch.randint(0, classes, (b, t))
    elif classes is not None:
        action = torch.stack([torch.randint(0, n, (b, t)) for n in classes], -1)
    c = agent.model.rssm.config
    extras = {
        "deter": torch.zeros(b, t, c.deter, dtype=torch.bfloat16),
        "stoch": torch.zeros(b, t, c.stoch, dtype=torch.uint8),
    }
    return Batch(obs, action, torch.randn(b, t), no, no.clone(), no.clone(), extras)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {k: {"norm": "layer"} for k in PARTS},
        {k: {"bins": "symlog"} for k in ("reward", "critic")},
        ADAM,
        {**ADAM, "actor_grad": "dynamics", "scales": Scales(dyn=0.5, repval=0.0)},
        {"imagine_last": 2},
    ],
    ids=str,
)
def test_every_form_learns_from_images_vectors_and_classes_together(options):
    agent = DreamerV3(config(**{"optimizer": AT_ONCE, **options}), MIXED)
    before = {k: p.detach().clone() for k, p in agent.named_parameters()}
    metrics, extras = agent.update_agent(windows(agent), phase=PHASE)
    assert all(torch.isfinite(v).all() for v in metrics.values())
    assert extras["deter"].shape == (2, 4, 16)  # the first step only leads in
    moved = {k.split(".")[0] for k, p in agent.named_parameters() if not torch.equal(p, before[k])}
    assert moved == {"model", "actor", "critic", "slow"}


@pytest.mark.parametrize("classes", [3, (2, 4)])
def test_discrete_and_multi_discrete_actions(classes):
    shape = () if isinstance(classes, int) else (len(classes),)
    spec = Spec(MIXED.obs, ArraySpec(shape, "int64", classes=classes))
    agent = DreamerV3(config(actor={"unimix": 0.01}), spec)
    metrics, _ = agent.update_agent(windows(agent), phase=PHASE)
    assert torch.isfinite(metrics["loss"])
    step = Step(
        {"image": np.zeros((2, 32, 32, 3), np.uint8), "joints": np.zeros((2, 3), np.float32),
         "kind": np.zeros(2, np.int64)},
        np.zeros(2, np.float32), np.ones(2, bool), np.zeros(2, bool), np.zeros(2, bool),
    )  # fmt: skip
    decision = agent.act(step, agent.initial_state(2), Mode.TRAIN)
    assert decision.action.shape == (2, *shape)
    assert decision.extras["stoch"].dtype == torch.uint8


def test_channels_that_do_not_divide_into_blocks_are_refused():
    with pytest.raises(ConfigError, match="multiple of blocks=4"):
        DreamerV3(config(decoder={"mults": (1, 1, 1)}), MIXED)


def test_the_dynamics_actor_needs_optimizers_of_its_own():
    with pytest.raises(ValueError, match="needs an actor_optimizer"):
        DreamerV3Config(actor_grad="dynamics")
    with pytest.raises(ValueError, match="come together"):
        DreamerV3Config(actor_optimizer=optimizer_part("adam"))


def test_the_first_step_of_a_window_only_lends_its_state():
    agent = DreamerV3(config(), MIXED)
    batch = windows(agent)
    start = agent.decompress_latent({k: v[:, 0] for k, v in batch.extras.items()})
    assert start.deter.shape == (2, 16)
    assert start.stoch.view(2, 4, 4).argmax(-1).eq(0).all()
    stored = agent.compress_latent(start)
    assert torch.equal(stored["stoch"], batch.extras["stoch"][:, 0])


# -- losses and their names -----------------------------------------------------------------------


def named(names: tuple[str, ...], scales: Scales) -> dict[str, torch.Tensor]:
    """Return what an update on observations of these names says."""
    torch.manual_seed(0)
    spec = Spec({k: ArraySpec((2,)) for k in names}, ArraySpec((), "int64", classes=3))
    agent = DreamerV3(config(optimizer=AT_ONCE, scales=scales), spec)
    torch.manual_seed(1)
    no = torch.zeros(2, 5, dtype=torch.bool)
    obs = {k: torch.randn(2, 5, 2) for k in names}
    extras = {"deter": torch.zeros(2, 5, 16).bfloat16(), "stoch": torch.zeros(2, 5, 4).byte()}
    action = torch.randint(0, 3, (2, 5))
    batch = Batch(obs, action, torch.randn(2, 5), no, no.clone(), no.clone(), extras)
    return agent.update_agent(batch, phase=PHASE)[0]


LOSSES = ("con", "dyn", "policy", "rep", "repval", "rew", "value")


def test_an_observation_may_have_the_name_of_a_loss():
    scales = Scales(rec=2.0, rew=0.5, con=3.0, dyn=0.7, policy=0.3, value=0.4, repval=0.2)
    plain, confusing = named(tuple("abcdefg"), scales), named(LOSSES, scales)
    assert float(confusing["loss"]) == float(plain["loss"])
    for name in LOSSES:
        assert torch.equal(confusing[f"loss/{name}"], plain[f"loss/{name}"])
    drawn = [plain[f"loss/rec/{k}"] for k in "abcdefg"]
    assert [confusing[f"loss/rec/{k}"] for k in LOSSES] == drawn


def test_every_loss_has_its_own_weight():
    base = named(("a",), Scales())
    for name in ("rec", *LOSSES):
        weight = getattr(Scales(), name)
        more = named(("a",), Scales(**{name: weight + 1.0}))
        loss = base["loss/rec/a" if name == "rec" else f"loss/{name}"]
        torch.testing.assert_close(more["loss"] - base["loss"], loss, atol=1e-3, rtol=1e-3)


# -- what moves when ------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", ["dynamics", "reinforce"])
def test_the_world_model_learns_the_same_however_fast_actor_and_critic_do(grad):
    models = []
    for lr in (1e-4, 1.0):
        fast = optimizer_part("adam", lr=lr)
        optimizers = {**ADAM, "critic_optimizer": fast, "actor_optimizer": fast}
        torch.manual_seed(0)
        agent = DreamerV3(config(**optimizers, actor_grad=grad), MIXED)
        with torch.no_grad():  # it begins at zero, where no gradient passes through it
            agent.critic.out.weight.normal_()
        batch = windows(agent)
        torch.manual_seed(1)
        agent.update_agent(batch, phase=PHASE)
        models.append(torch.cat([p.detach().flatten() for p in agent.model.parameters()]))
    assert torch.equal(*models)


def test_every_optimizer_has_the_rate_it_was_given():
    kinds = {k: p.but(lr=(i + 1) * 1e-3) for i, (k, p) in enumerate(ADAM.items())}
    agent = DreamerV3(config(**kinds), MIXED)
    rates = {k: o.lr for k, o in agent.optimizers.items()}
    assert rates == {"actor": 1e-3, "critic": 2e-3, "model": 3e-3}


def test_a_state_that_only_leads_in_is_not_written_over_a_fresher_one(tmp_path):
    small = ("tiny=true", "env.num_envs=1", "device=cpu", "buffers.replay.length=4")
    loop = open_loop(tmp_path / "r", "+experiment=dreamer_cartpole", *small)
    run_for(loop, 8)
    replay, agent = loop.parts.buffers["replay"], loop.workflow
    for first, second in ((0, 2), (2, 0)):  # step 2 leads one window in and is inside of the other
        batch = replay._batch(np.array([first, second]), None, replay.offsets)
        _, extras = agent.update_agent(batch, phase=PHASE)
        replay.update(batch.index, extras)
        inside = 0 if first == 0 else 1
        stored = replay.read(torch.tensor([[2]]))["extras/deter"][0, 0]
        assert torch.equal(stored, extras["deter"][inside, 1])
        lead_in = replay.read(torch.tensor([[0]]))["extras/deter"][0, 0]
        assert torch.equal(lead_in, batch.extras["deter"][inside, 0])  # as it was


@pytest.mark.parametrize(("kind", "half", "end"), [("linear", 0.55, 0.1), ("cosine", 0.55, 0.1)])
def test_the_learning_rate_falls_to_a_tenth(kind, half, end):
    schedule = {"_target_": kind, "final": 0.1}
    optimizer = AT_ONCE.but(schedule=schedule, lr=1.0)
    agent = DreamerV3(config(optimizer=optimizer), MIXED)
    for progress, rate in ((0.0, 1.0), (0.5, half), (1.0, end)):
        agent.update_agent(windows(agent), phase=PHASE.at(progress))
        assert agent.optimizers["agent"].lr == pytest.approx(rate)


def test_gradients_that_are_gathered_are_those_of_the_sum_of_losses():
    """An update takes gradients piece by piece; here all losses are added first."""
    agent = DreamerV3(config(imagine_last=3), MIXED)
    batch = windows(agent)
    for p in agent.parameters():
        p.data.add_(0.1 * torch.randn_like(p))  # heads that start at zero would hide a fault
    state = copy.deepcopy(agent.state_dict())
    heard: list[list[torch.Tensor]] = []
    opt = agent.optimizers["agent"]
    opt.heard = lambda grads: heard.append([g.clone() for g in grads if g is not None])
    torch.manual_seed(3)
    metrics, _ = agent.update(batch)
    agent.load_state_dict(state)
    torch.manual_seed(3)
    start = agent.decompress_latent({k: v[:, 0] for k, v in batch.extras.items()})
    obs = {k: v[:, 1:] for k, v in batch.obs.items()}
    first, last, terminal = (x[:, 1:] for x in (batch.is_first, batch.is_last, batch.is_terminal))
    seen = agent.model.observe(obs, batch.action[:, :-1], first, start)
    losses, _ = agent.model.losses(seen, obs, batch.reward[:, 1:], terminal)
    dream = agent.dream(Latent(*(x[:, -3:] for x in seen.latent)).flat())
    known = [x[:, -3:] for x in (seen.feature, batch.reward[:, 1:], last, terminal)]
    more, _ = agent.actor_critic_losses(dream, *known)
    whole = agent.learn(losses | more)
    torch.testing.assert_close(metrics["loss"], whole["loss"])
    gathered, summed = heard
    assert len(gathered) == len(summed) == len(opt.params)
    for a, b in zip(gathered, summed, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
        assert b.abs().max() > 0
