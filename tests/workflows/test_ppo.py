"""PPO: the numbers of its losses, when it stops, and what actor and critic share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import config_of, open_loop, run_for

from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, Step
from dreamlab.ops.returns import gae
from dreamlab.workflows.ppo import PPO, PPOConfig, Samples, _value_error

STATE = {"state": ArraySpec((3,))}
IMAGE = {"image": ArraySpec((36, 36, 1), "uint8"), "state": ArraySpec((2,))}
CHOICE = ArraySpec((), "int64", classes=3)
CHOICES = ArraySpec((2,), "int64", classes=(3, 2))
NUMBERS = ArraySpec((2,), low=-1.0, high=1.0)
PHASE = Phase("learn", ("update_controller",))


def make(action: ArraySpec = CHOICE, obs: dict[str, ArraySpec] = STATE, **options: Any) -> PPO:
    torch.manual_seed(0)
    return PPO(
        load(PPOConfig, {"network": {"hidden": (8,)}, **options}, "workflow"), Spec(obs, action)
    )


def rollout(ppo: PPO, num: int = 4, t: int = 9) -> Batch:
    """Return a rollout [num, t] of noise in which nothing ends."""
    torch.manual_seed(1)
    shape = (num, t)
    no = torch.zeros(shape, dtype=torch.bool)
    obs = {
        k: torch.randint(0, 256, (*shape, *s.shape), dtype=torch.uint8) if s.is_image
        else torch.randn(*shape, *s.shape)
        for k, s in ppo.spec.obs.items()
    }  # fmt: skip
    action = torch.randint(0, 2, (*shape, *ppo.spec.action.shape))
    if not ppo.spec.action.is_discrete:
        action = torch.rand(*shape, *ppo.spec.action.shape) * 2 - 1
    return Batch(obs, action, torch.randn(shape), no, no.clone(), no.clone())


def samples(value: list[float], target: list[float]) -> Samples:
    """Return transitions whose policy loss is zero."""
    n = len(value)
    zeros = torch.zeros(n)
    return Samples(
        {"state": torch.zeros(n, 3)}, torch.zeros(n, dtype=torch.int64), zeros, zeros,
        torch.tensor(value), torch.tensor(target), zeros == 0, zeros > 0, (),
    )  # fmt: skip


def value_loss(ppo: PPO, new: list[float], s: Samples, limit: float | None) -> float:
    """Return the loss if the critic says `new`."""
    values = torch.tensor(new, requires_grad=True)
    policy = ppo.actor.dist(ppo.actor_net(s.obs["state"])[0] @ torch.zeros(8, 3))
    ppo.evaluate = lambda *args: (policy, values + 0 * next(ppo.parameters()).sum())
    clip = torch.tensor(0.2)
    metrics = ppo.minibatch(s, clip, None if limit is None else torch.tensor(limit))
    return float(metrics["value_loss"])


# -- the value's loss -----------------------------------------------------------------------------


def test_the_value_error_is_not_clipped_unless_asked_for():
    s = samples([1.0, 1.0], [3.0, 0.0])
    assert value_loss(make(), [2.0, 2.0], s, None) == ((2 - 3) ** 2 + (2 - 0) ** 2) / 2


def test_a_value_that_moved_too_far_has_the_larger_of_both_errors():
    # old values 1, allowed to move by 0.5: 2 counts as 1.5, 1.25 as itself, -2 as 0.5
    s = samples([1.0, 1.0, 1.0, 1.0], [3.0, 0.0, 1.0, 3.0])
    new = [2.0, 2.0, 1.25, -2.0]
    errors = [max(1.0**2, 1.5**2), max(2.0**2, 1.5**2), 0.25**2, max(5.0**2, 2.5**2)]
    assert value_loss(make(), new, s, 0.5) == sum(errors) / 4


def test_a_value_that_moved_too_far_the_right_way_gets_no_gradient():
    s = samples([1.0, 1.0], [3.0, 3.0])
    values = torch.tensor([2.0, 1.2], requires_grad=True)
    _value_error(values, s, torch.tensor(0.5)).sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([0.0, 2 * (1.2 - 3)]))


def test_the_value_clip_changes_what_is_learnt():
    plain, clipped = make(epochs=4, minibatch=8), make(epochs=4, minibatch=8, clip_value=1e-3)
    for ppo in (plain, clipped):
        torch.manual_seed(2)
        ppo.update_controller(rollout(ppo), phase=PHASE)
    assert not torch.equal(plain.critic.weight, clipped.critic.weight)


def test_pong_is_set_as_baselines_has_it():
    c = config_of("+experiment=ppo_pong").workflow.config
    # vf_coef 0.5 times .5 * mean(max(...)); cliprange 0.1, which falls, for ratios and values
    assert (c.clip, c.clip_value, c.anneal_clip, c.value_coef) == (0.1, 0.1, True, 0.5 * 0.5)


# -- clipping and stopping ------------------------------------------------------------------------


def seen_clips(ppo: PPO, progress: float) -> set[tuple[float, float | None]]:
    seen = set()
    inner = ppo.minibatch

    def spy(s: Samples, clip: torch.Tensor, limit: torch.Tensor | None) -> Any:
        seen.add((round(float(clip), 6), None if limit is None else round(float(limit), 6)))
        return inner(s, clip, limit)

    object.__setattr__(ppo, "minibatch", spy)
    ppo.update_controller(rollout(ppo), phase=PHASE.at(progress))
    return seen


@pytest.mark.parametrize(
    ("anneal", "progress", "want"),
    [(False, 0.75, (0.2, 0.4)), (True, 0.0, (0.2, 0.4)), (True, 0.75, (0.05, 0.1))],
)
def test_both_clips_fall_with_the_training_if_so_asked(anneal, progress, want):
    ppo = make(clip=0.2, clip_value=0.4, anneal_clip=anneal, epochs=1)
    assert seen_clips(ppo, progress) == {want}
    assert seen_clips(make(clip=0.2, anneal_clip=anneal, epochs=1), progress) == {(want[0], None)}


def test_epochs_stop_once_the_policy_has_moved_too_far():
    calls: list[float] = [0.0, 0.01, 0.014, 0.0151, 0.5]  # kl after each of five epochs
    ppo = make(epochs=5, minibatch=32, target_kl=0.01)

    def fake(s: Samples, clip: torch.Tensor, limit: torch.Tensor | None) -> Any:
        return {"kl": torch.tensor(calls.pop(0))}

    object.__setattr__(ppo, "minibatch", fake)
    metrics = ppo.update_controller(rollout(ppo), phase=PHASE)
    assert float(metrics["steps"]) == 4  # 0.0151 > 1.5 * 0.01
    assert calls == [0.5]


def test_the_divergence_is_what_the_epochs_are_stopped_by():
    options = {"epochs": 20, "minibatch": 32, "optimizer": {"lr": 0.05, "schedule": "constant"}}
    free, held = make(**options), make(**options, target_kl=1e-3)
    steps = [float(p.update_controller(rollout(p), phase=PHASE)["steps"]) for p in (free, held)]
    assert steps[0] == 20
    assert 1 <= steps[1] < 20


def test_the_learning_rate_falls_to_zero_unless_told_otherwise():
    ppo = make(epochs=1)
    for progress in (0.0, 0.25, 1.0):
        metrics = ppo.update_controller(rollout(ppo), phase=PHASE.at(progress))
        assert float(metrics["lr"]) == pytest.approx(3e-4 * (1 - progress))
    constant = make(epochs=1, optimizer={"schedule": "constant"})
    constant.update_controller(rollout(constant), phase=PHASE.at(0.5))
    assert constant.opt.lr == 3e-4


# -- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [CHOICE, CHOICES, NUMBERS], ids=["one", "several", "numbers"])
def test_layers_in_bfloat16_leave_samples_and_probabilities_in_full_precision(action):
    ppo = make(action)
    batch = rollout(ppo, num=64)
    with torch.autocast("cpu", torch.bfloat16):
        assert ppo.actor.layer(torch.zeros(1, 8)).dtype == torch.bfloat16
        dist, value = ppo.evaluate(batch.obs, batch.is_first, ())
        action_, log_prob, entropy = dist.sample(), dist.log_prob(batch.action), dist.entropy()
    assert value.dtype == log_prob.dtype == entropy.dtype == torch.float32
    if not action.is_discrete:
        noise = action_ - dist.mode()
        assert (noise != noise.bfloat16().float()).float().mean() > 0.9  # finer than that


# -- what actor and critic share ------------------------------------------------------------------


def groups(ppo: PPO) -> set[str]:
    return {n.split(".")[0] for n, _ in ppo.named_parameters()}


def test_a_critic_may_have_another_network():
    ppo = make(critic_network={"_target_": "mlp", "hidden": (5, 6)})
    assert ppo.actor_net.out_dim == 8
    assert ppo.critic.in_features == 6
    ppo.update_controller(rollout(ppo), phase=PHASE)


@pytest.mark.parametrize(
    ("share", "want"),
    [
        ("encoder", {"encoder", "actor_net", "critic_net", "actor", "critic"}),
        ("network", {"encoder", "actor_net", "actor", "critic"}),
        ("nothing", {"encoder", "critic_encoder", "actor_net", "critic_net", "actor", "critic"}),
    ],
)
def test_actor_and_critic_share_what_is_asked_for(share, want):
    ppo = make(obs=IMAGE, share=share, epochs=2, optimizer={"lr": 1e-2})
    assert groups(ppo) == want
    before = {n: p.detach().clone() for n, p in ppo.named_parameters()}
    ppo.update_controller(rollout(ppo), phase=PHASE)
    assert {n.split(".")[0] for n, p in ppo.named_parameters() if not p.equal(before[n])} == want
    batch = rollout(ppo)
    dist, value = ppo.evaluate(batch.obs, batch.is_first, ())
    read = list(ppo.encoder.parameters())
    chosen = dist.log_prob(batch.action).sum()
    policy = torch.autograd.grad(chosen, read, retain_graph=True)
    assert all(g.abs().sum() > 0 for g in policy)
    own = torch.autograd.grad(value.sum(), read, allow_unused=True)
    assert all((g is None) == (share == "nothing") for g in own)


@pytest.mark.parametrize("share", ["nothing", "encoder", "network"])
def test_memories_are_replayed_whatever_is_shared(share, tmp_path):
    options = (
        "+experiment=ppo_cartpole", "workflow.network=rnn", f"workflow.share={share}", "tiny=true",
        "env.num_envs=2", "device=cpu", "eval.every_frames=0",
    )  # fmt: skip
    loop = open_loop(tmp_path / "r", *options)
    run_for(loop, 1)
    ppo = loop.workflow
    assert isinstance(ppo, PPO)
    batch = loop.parts.buffers["rollout"].sample()
    state = ppo._stored_state(batch)
    assert set(state) == ({"actor"} if share == "network" else {"actor", "critic"})
    with torch.no_grad():
        dist, _ = ppo.evaluate(batch.obs, batch.is_first, state)
        one, _ = ppo.evaluate(*_first(batch), state)
    torch.testing.assert_close(dist.logits[:, 0], one.logits[:, 0])
    assert ppo.update_controller(batch, phase=PHASE)["grad_norm"] > 0


def _first(batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    return {k: v[:, :1] for k, v in batch.obs.items()}, batch.is_first[:, :1]


def test_one_of_both_may_have_a_memory(tmp_path):
    options = (
        "+experiment=ppo_cartpole", "workflow.critic_network=rnn", "tiny=true", "env.num_envs=2",
        "device=cpu", "eval.every_frames=0", "training.total_frames=100", "eval.video=false",
        "eval.episodes=1",
    )  # fmt: skip
    assert open_loop(tmp_path / "r", *options).run() == "finished"


def test_a_critic_may_have_another_encoder():
    image = {"_target_": "cnn", "depth": 2, "out_dim": 5}
    ppo = make(obs=IMAGE, share="nothing", critic_encoder={"image": image})
    assert ppo.critic_encoder.out_dim == 5 + 2  # beside the image there are two numbers
    assert ppo.encoder.out_dim == 512 + 2
    before = [p.detach().clone() for p in ppo.critic_encoder.parameters()]
    ppo.update_controller(rollout(ppo), phase=PHASE)
    assert not any(map(torch.equal, ppo.critic_encoder.parameters(), before))


@pytest.mark.parametrize("share", ["encoder", "network"])
def test_an_encoder_of_its_own_contradicts_a_shared_one(share):
    with pytest.raises(ConfigError, match=f"critic_encoder has no effect with share={share}"):
        make(share=share, critic_encoder={})


@pytest.mark.parametrize("same", [{"lam": 0.7}, {"_target_": "lambda_return", "lam": 0.7}])
def test_advantages_come_from_the_estimator_that_was_chosen(same):
    ppo = make(gamma=0.9, returns=same)
    batch = rollout(ppo)
    _, value = ppo.evaluate(batch.obs, batch.is_first, ())
    want = gae(batch.reward, value, batch.is_last, batch.is_terminal, 0.9, 0.7)
    got = ppo.prepare(batch)
    keep = ~batch.is_last[:, :-1]
    torch.testing.assert_close(got.advantage, want[keep])
    torch.testing.assert_close(got.target, (want + value[:, :-1])[keep])


def test_another_estimator_is_another_advantage():
    batch = rollout(make())
    found = [make(returns=r).prepare(batch).advantage for r in ("gae", "monte_carlo", "n_step")]
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


def test_a_network_of_its_own_contradicts_a_shared_one():
    with pytest.raises(ConfigError, match="critic_network has no effect with share=network"):
        make(share="network", critic_network="mlp")


def test_acting_takes_the_mode_in_evaluation():
    ppo = make()
    with torch.no_grad():
        ppo.actor.layer.bias.copy_(torch.tensor([0.0, 9.0, 0.0]))
    flags = torch.zeros(5, dtype=torch.bool).numpy()
    step = Step({"state": torch.zeros(5, 3).numpy()}, flags, ~flags, flags, flags)
    assert ppo.act(step, (), Mode.EVAL).action.tolist() == [1] * 5
