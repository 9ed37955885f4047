"""DQN: targets against numbers worked out by hand, the schedules, and that it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.helpers import metrics, open_loop

from dreamlab.components.critics.readout import C51, C51Config
from dreamlab.components.critics.transitions import transitions
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, Step
from dreamlab.workflows.dqn import DQN, DQNConfig
from dreamlab.workflows.ppo import PPO
from dreamlab.workflows.sac import SAC

SPEC = Spec({"state": ArraySpec((3,))}, ArraySpec((), "int64", classes=2))
PHASE = Phase("learn", ("update_controller",))


def make(spec: Spec = SPEC, **options) -> DQN:
    torch.manual_seed(0)
    options = {"network": {"hidden": (16,)}, "optimizer": {"lr": 1e-2}, **options}
    return DQN(load(DQNConfig, options, "workflow"), spec)


def batch_of(num: int = 5, length: int = 2, **given) -> Batch:
    """Return windows in the middle of an episode, rewards 1, 2, 3, ... along each."""
    torch.manual_seed(1)
    no = torch.zeros(num, length, dtype=torch.bool)
    values = {
        "obs": {"state": torch.randn(num, length, 3)},
        "action": torch.randint(0, 2, (num, length)),
        "reward": torch.arange(length).float().expand(num, length).clone(),
        "is_first": no.clone(),
        "is_last": no.clone(),
        "is_terminal": no.clone(),
    }
    return Batch(**{**values, **given})


def step_of(num: int) -> Step:
    no = np.zeros(num, bool)
    obs = {"state": np.random.default_rng(0).normal(size=(num, 3)).astype(np.float32)}
    return Step(obs, np.zeros(num, np.float32), no, no, no)


class Fixed(torch.nn.Module):
    """A network that gives the same values whatever it sees."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, obs: dict) -> torch.Tensor:
        return self.values.expand(len(obs["state"]), -1)[..., None]


# -- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("double", "expected"), [(False, 1 + 0.5 * 10), (True, 1 + 0.5 * 3)])
def test_double_values_the_online_choice_with_the_target_network(double, expected):
    dqn = make(double=double, gamma=0.5)
    dqn.online, dqn.target = Fixed([8.0, 9.0]), Fixed([10.0, 3.0])  # type: ignore[assignment]
    targets = dqn.targets(transitions(batch_of(), 0.5))
    torch.testing.assert_close(targets, torch.full((5, 1), expected))


def test_one_step_bootstraps_unless_the_step_is_terminal():
    batch = batch_of(2)
    batch.is_terminal[1, 1] = batch.is_last[1, 1] = True
    batch.is_last[0, 1] = True  # a time limit: the value beyond it counts
    t = transitions(batch, 0.9)
    torch.testing.assert_close(t.factor, torch.tensor([0.9, 0.0]))
    torch.testing.assert_close(t.reward, torch.tensor([1.0, 1.0]))
    torch.testing.assert_close(t.next_obs["state"], batch.obs["state"][:, 1])


def test_n_steps_stop_where_the_episode_does():
    batch = batch_of(4, 4)
    batch.is_last[1, 2] = batch.is_terminal[1, 2] = True
    batch.is_last[2, 2] = True  # truncated
    batch.is_terminal[3, 1] = True  # a lost life within an episode that goes on
    t = transitions(batch, 0.5)
    torch.testing.assert_close(t.reward, torch.tensor([1 + 0.5 * 2 + 0.25 * 3, 2.0, 2.0, 1.0]))
    torch.testing.assert_close(t.factor, torch.tensor([0.125, 0.0, 0.25, 0.0]))
    at = torch.tensor([3, 2, 2, 1])
    torch.testing.assert_close(t.next_obs["state"], batch.obs["state"][range(4), at])


def test_n_steps_of_one_are_the_short_way():
    long = batch_of(3, 3)
    long.is_last[:, 1] = True
    short = replace(
        long,
        obs={"state": long.obs["state"][:, :2]},
        **{k: getattr(long, k)[:, :2] for k in ("reward", "is_last", "is_terminal")},
    )
    a, b = transitions(long, 0.9), transitions(short, 0.9)
    for name in ("reward", "factor"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name))
    torch.testing.assert_close(a.next_obs, b.next_obs)


def test_c51_targets_keep_the_mass_and_the_mean():
    c51 = C51(C51Config(atoms=11, low=-5, high=5))
    logits = torch.randn(4, 11) - c51.support.square()  # mass near 0: nothing is clipped
    t = transitions(batch_of(4), 0.5)
    target = c51.ahead(logits, t.reward, t.factor)
    mean = (logits.softmax(-1) @ c51.support) * 0.5 + 1.0
    torch.testing.assert_close(target.sum(-1), torch.ones(4))
    torch.testing.assert_close(target @ c51.support, mean)


def test_c51_puts_a_terminal_reward_between_two_atoms():
    c51 = C51(C51Config(atoms=3, low=0, high=4))
    batch = batch_of(1)
    batch.reward[:, 1], batch.is_terminal[:, 1] = 1.5, True
    t = transitions(batch, 0.9)
    target = c51.ahead(torch.zeros(1, 3), t.reward, t.factor)
    torch.testing.assert_close(target, torch.tensor([[0.25, 0.75, 0.0]]))


def test_c51_has_no_loss_and_no_priority_where_it_is_right():
    c51 = C51(C51Config(atoms=3))
    logits = torch.randn(2, 3)
    losses = c51.distance(logits, logits.softmax(-1))
    torch.testing.assert_close(losses, torch.zeros(2), atol=1e-6, rtol=0)
    assert c51.distance(logits, torch.eye(3)[:2]).min() > 0.01


def test_dueling_advantages_have_mean_zero():
    net = make(dueling=True).online
    obs = {"state": torch.randn(7, 3)}
    value = net.value_out(net.value(obs["state"])[0])
    torch.testing.assert_close(net(obs).mean(1), value)
    assert net(obs).std(1).min() > 0


def test_the_loss_is_huber_of_the_error_of_the_action_taken():
    dqn, batch = make(), batch_of()
    q = dqn.online({"state": batch.obs["state"][:, 0]})[..., 0]
    ahead = dqn.target({"state": batch.obs["state"][:, 1]})[..., 0].max(1).values
    error = q[range(5), batch.action[:, 0]] - (1 + 0.99 * ahead)
    expected = torch.where(error.abs() < 1, error**2 / 2, error.abs() - 0.5).mean()
    torch.testing.assert_close(dqn.update_controller(batch, phase=PHASE)["loss"], expected.detach())


# -- priorities -----------------------------------------------------------------------------------


@pytest.mark.parametrize("readout", ["huber", "c51", "quantile"])
def test_priorities_come_back_where_the_replay_gives_weights(readout):
    dqn, batch = make(readout=readout), batch_of()
    assert isinstance(dqn.update_controller(batch, phase=PHASE), dict)
    weighted = replace(batch, extras={"weight": torch.ones(5)})
    _, extras = dqn.update_controller(weighted, phase=PHASE)
    assert extras["priority"].shape == (5,)
    assert (extras["priority"] > 0).all()
    assert not extras["priority"].requires_grad


def test_a_transition_of_weight_zero_teaches_nothing():
    batch = batch_of()
    changed = replace(batch, reward=batch.reward.clone())
    changed.reward[0, 1] = 100.0
    nets = []
    for b in (batch, changed):
        dqn = make()
        weight = torch.ones(5)
        weight[0] = 0
        dqn.update_controller(replace(b, extras={"weight": weight}), phase=PHASE)
        nets.append(torch.cat([p.flatten() for p in dqn.online.parameters()]))
    torch.testing.assert_close(*nets)


# -- schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "tau", "shares"), [(3, 1.0, [0, 0, 1, 0, 0, 1]), (1, 0.25, [0.25] * 6)]
)
def test_the_target_network_moves_by_tau_every_so_many_updates(every, tau, shares):
    dqn, batch = make(target_every_gradient_steps=every, tau=tau), batch_of()
    for share in shares:
        before = [p.clone() for p in dqn.target.parameters()]
        dqn.update_controller(batch, phase=PHASE)
        for old, new, online in zip(
            before, dqn.target.parameters(), dqn.online.parameters(), strict=True
        ):
            torch.testing.assert_close(new, old + share * (online - old))
        assert share == 1 or not torch.equal(new, online)  # type: ignore[possibly-undefined]


@pytest.mark.parametrize("double", [False, True])
def test_minibatches_are_gradient_steps_one_after_another(double):
    whole, parts = (make(double=double, target_every_gradient_steps=100) for _ in range(2))
    batch = batch_of(6)
    parts.load_state_dict(whole.state_dict())
    num = len(batch.reward) // 2
    parts.config = replace(parts.config, minibatch=num)
    parts.update_controller(batch, phase=PHASE)
    for rows in (slice(0, num), slice(num, None)):
        cut = {k: getattr(batch, k)[rows] for k in ("reward", "is_first", "is_last", "is_terminal")}
        obs = {k: v[rows] for k, v in batch.obs.items()}
        piece = replace(batch, obs=obs, action=batch.action[rows], **cut)
        whole.update_controller(piece, phase=PHASE)
    for a, b in zip(whole.online.parameters(), parts.online.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert parts.steps.value == whole.steps.value == 2


def test_the_target_network_receives_no_gradient():
    dqn = make()
    dqn.update_controller(batch_of(), phase=PHASE)
    assert all(p.grad is None and not p.requires_grad for p in dqn.target.parameters())


def test_epsilon_falls_with_decisions_of_training_only():
    dqn = make(epsilon=1.0, epsilon_final=0.1, epsilon_decisions=90)
    for _ in range(3):
        dqn.act(step_of(10), (), Mode.TRAIN)
        dqn.act(step_of(10), (), Mode.EVAL)
    assert dqn.epsilon() == pytest.approx(0.7)
    dqn.act(step_of(10), (), Mode.SAMPLE)  # an evaluation that samples as in training
    assert dqn.decisions.value == 30
    for _ in range(20):
        dqn.act(step_of(10), (), Mode.TRAIN)
    assert dqn.epsilon() == pytest.approx(0.1)


def test_counts_are_saved_and_restored():
    dqn, other = make(), make()
    dqn.act(step_of(4), (), Mode.TRAIN)
    dqn.update_controller(batch_of(), phase=PHASE)
    other.load_state_dict(dqn.state_dict())
    assert other.decisions.value == 4
    assert other.steps.value == 1


def test_actions_are_greedy_in_evaluation_and_random_at_first():
    dqn, step = make(), step_of(1000)
    best = dqn.online({"state": torch.from_numpy(step.obs["state"])})[..., 0].argmax(-1)
    assert torch.equal(dqn.act(step, (), Mode.EVAL).action, best)
    same = (dqn.act(step, (), Mode.TRAIN).action == best).float().mean()
    assert 0.4 < same < 0.6  # epsilon is 1: any of two actions


# -- what it takes and what it refuses ------------------------------------------------------------


def test_images_and_vectors_together():
    obs = {"image": ArraySpec((16, 16, 3), "uint8"), "state": ArraySpec((3,))}
    dqn = make(Spec(obs, SPEC.action), dueling=True, readout="c51")
    image = torch.randint(0, 256, (5, 2, 16, 16, 3), dtype=torch.uint8)
    batch = batch_of()
    batch.obs["image"] = image
    before = [p.clone() for p in dqn.online.encoder.parameters()]
    dqn.update_controller(batch, phase=PHASE)
    moved = [
        not torch.equal(a, b) for a, b in zip(before, dqn.online.encoder.parameters(), strict=True)
    ]
    assert all(moved)
    assert moved


@pytest.mark.parametrize("readout", ["huber", "c51", "quantile"])
def test_layers_in_bfloat16_leave_the_loss_in_full_precision(readout):
    dqn = make(dueling=True, double=True, readout=readout)
    with torch.autocast("cpu", torch.bfloat16):
        seen = dqn.update_controller(batch_of(), phase=PHASE)
        q = dqn.readout.decode(dqn.online({"state": torch.randn(2, 3)}))
    assert seen["loss"].dtype == q.dtype == torch.float32


@pytest.mark.parametrize(
    ("action", "others"),
    [
        (ArraySpec((2,), low=-1.0, high=1.0), {"SAC": SAC, "PPO": PPO}),
        (ArraySpec((2,), "int64", classes=(3, 4)), {"PPO": PPO}),
    ],
)
def test_other_actions_are_refused_with_the_names_of_those_who_take_them(action, others):
    with pytest.raises(ConfigError, match="DQN needs one discrete action") as error:
        make(Spec(SPEC.obs, action))
    assert str(error.value).endswith(f"Use {' or '.join(others)} instead.")
    for cls in others.values():
        cls(cls.Config(), Spec(SPEC.obs, action))


def test_a_network_with_memory_is_refused():
    with pytest.raises(ConfigError, match="memory"):
        make(network={"_target_": "rnn"})


def test_an_epsilon_that_rises_is_refused():
    with pytest.raises(ConfigError, match="epsilon must fall"):
        make(epsilon=0.1, epsilon_final=0.5)


# -- learning -------------------------------------------------------------------------------------


IDENTITY = [
    "env.suite=dummy", "env.id=identity", "training.total_frames=3000", "eval.video=false",
    "workflow.epsilon_decisions=1000", "workflow.gamma=0.5", "eval.every_frames=0",
]  # fmt: skip


@pytest.mark.learns
@pytest.mark.parametrize("name", ["dqn_cartpole", "dqn_rainbow_cartpole"])
def test_it_learns_to_answer_what_it_sees(name, tmp_path):
    open_loop(tmp_path, f"+experiment={name}", *IDENTITY).run()
    assert metrics(tmp_path)[-1]["eval/return"] >= 15  # of 16; chance is 4


@pytest.mark.learns
def test_it_learns_cartpole(tmp_path):
    open_loop(tmp_path, "+experiment=dqn_cartpole", "eval.video=false").run()
    returns = [r["eval/return"] for r in metrics(tmp_path) if "eval/return" in r]
    assert max(returns) >= 475  # it swings; the checkpoint `best` is the one to take


def test_a_checkpoint_that_called_the_support_otherwise_is_read():
    dqn = make(readout={"_target_": "c51", "low": 0.0, "high": 7.0})
    state = dict(dqn.state_dict())
    state["returns.support"] = state.pop("readout.support")
    again = make(readout={"_target_": "c51", "low": 0.0, "high": 7.0})
    again.load_state_dict(state)
    assert again.readout.support.max() == 7


def test_quantiles_come_to_the_returns_of_a_terminal_step():
    dqn, batch = make(readout="quantile", optimizer={"lr": 1e-2}), batch_of(64)
    batch.is_terminal[:, 1] = batch.is_last[:, 1] = True
    for _ in range(150):
        dqn.update_controller(batch, phase=PHASE)
    out = dqn.online({"state": batch.obs["state"][:, 0]})
    rows = torch.arange(64)
    q = dqn.readout.decode(out)[rows, batch.action[:, 0]].detach()
    torch.testing.assert_close(q, batch.reward[:, 1], atol=0.2, rtol=0)
