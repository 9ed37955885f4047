"""A loaded agent played by hand does what its evaluation does; what it cannot do, it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import dreamlab
from dreamlab.cli import main
from dreamlab.core.rng import derive
from dreamlab.core.tree import tree_leaves
from tests.helpers import open_loop, trained_once

FAST = (
    "tiny=true", "eval.episodes=1", "eval.every_frames=0", "eval.video=false", "device=cpu",
    "training.total_frames=200",
)  # fmt: skip
RUNS = {
    "ppo": ("+experiment=ppo_cartpole", "++env.normalize_obs={}", "workflow.network=rnn"),
    "sac": ("+experiment=sac_pendulum",),
    "dreamer": (
        "+experiment=dreamer_pendulum", "training.phases.0.train_ratio=4", "++env.time_limit=40",
    ),
    "tdmpc2": ("+experiment=tdmpc2_pendulum",),
    "pixels": (
        "+experiment=ppo_cartpole", "env=dummy", "env.id=pixels", "++env.size=[48,48]",
        "++env.gray=true", "++env.frame_stack=3",
    ),
}  # fmt: skip
PLAIN = {
    "ppo": {"id": "CartPole-v1"},
    "sac": {"id": "Pendulum-v1"},
    "dreamer": {"id": "Pendulum-v1", "max_episode_steps": 40},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the folder of a short run, trained once for all tests that ask for it."""
    options = {name: (head, *FAST, *rest) for name, (head, *rest) in RUNS.items()}
    return trained_once(tmp_path_factory.mktemp("runs"), options)


def first_seed(seed: int, index: int = 0) -> int:
    """Return the seed of the first episode of an environment of an evaluation."""
    return derive(seed, index, 0) % 2**31


def episode(agent: dreamlab.Agent, env: gym.Env, seed: int) -> tuple[float, int]:
    """Play one episode by hand; return its return and its length."""
    agent.seed(seed)
    obs, _ = env.reset(seed=first_seed(seed))
    state, total, steps, over = None, 0.0, 0, False
    while not over:
        action, state = agent.predict(obs, state)
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        total, steps = total + float(np.float32(reward)), steps + 1
    env.close()
    return total, steps


SLOW = ("tdmpc2", "pixels")
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in RUNS]


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_by_hand_is_the_evaluation_of_its_seed(name, trained):
    agent = dreamlab.load(trained(name))
    measured = agent.evaluate(1, seed=5)
    env = gym.make(**PLAIN[name]) if name in PLAIN else agent.make_env()
    total, steps = episode(agent, env, 5)
    assert steps == measured.lengths[0]
    assert total == pytest.approx(measured.returns[0], abs=1e-9)
    assert measured.mean == measured.returns[0]


def cloned(folder: Path, sac: Path) -> Path:
    """Train a diffusion policy in chunks of actions on a data set that SAC has recorded."""
    data = folder / "data"
    assert main(["data", "record", str(sac), str(data), "--episodes", "2", "--mode", "train"]) == 0
    file = Path(__file__).parents[2] / "examples" / "clone.yaml"
    given = [str(file), "tiny=true", f"buffers.demos.path={data}", "device=cpu", "eval.video=false"]
    open_loop(folder / "clone", *given, "training.phases.0.duration_updates=5").run()
    return folder / "clone"


def test_a_clone_in_chunks_with_normalised_data_acts_as_in_its_evaluation(
    trained, tmp_path, capsys
):
    agent = dreamlab.load(cloned(tmp_path, trained("sac")))
    assert set(agent._normalizer.scaling) == {"state", "action"}
    measured = agent.evaluate(1, seed=3)
    assert episode(agent, gym.make("Pendulum-v1"), 3) == pytest.approx(
        (measured.returns[0], measured.lengths[0]), abs=1e-9
    )


def test_a_batch_plays_all_episodes_of_an_evaluation(trained):
    agent = dreamlab.load(trained("ppo"))
    measured = agent.evaluate(3, seed=4)
    envs = [gym.make("CartPole-v1") for _ in range(3)]
    obs = np.stack([e.reset(seed=first_seed(4, i))[0] for i, e in enumerate(envs)])
    totals, over = np.zeros(3), np.zeros(3, bool)
    agent.seed(4)
    state, start = None, None
    while not over.all():
        actions, state = agent.predict(obs, state, episode_start=start)
        start = np.zeros(3, bool)
        for i, env in enumerate(envs):
            obs[i], reward, terminated, truncated, _ = env.step(actions[i])
            totals[i] += 0 if over[i] else float(reward)
            if terminated or truncated:
                over[i] = start[i] = True
                obs[i], _ = env.reset(seed=i)
    assert totals.tolist() == measured.returns


def test_who_begins_an_episode_forgets_and_the_others_remember(trained):
    agent = dreamlab.load(trained("ppo"))
    one = np.array([0.1, -0.2, 0.03, 0.4], np.float32)
    obs = np.stack([one, one])
    _, fresh = agent.predict(obs)
    _, later = agent.predict(obs, fresh, episode_start=[True, False])
    pairs = [
        (a, b)
        for (_, a), (_, b) in zip(tree_leaves(fresh.tree), tree_leaves(later.tree), strict=True)
        if torch.is_tensor(a) and a.is_floating_point()
    ]
    assert pairs
    assert all(torch.allclose(a[0], b[0]) for a, b in pairs)
    assert not all(torch.allclose(a[1], b[1]) for a, b in pairs)


def test_samples_are_of_the_agents_own_stream(trained):
    agent = dreamlab.load(trained("sac"))
    obs = np.array([1.0, 0.0, 0.5])
    before = torch.get_rng_state()
    draws = []
    for _ in range(2):
        agent.seed(1)
        draws.append([agent.predict(obs, deterministic=False)[0] for _ in range(3)])
    assert np.array_equal(draws[0], draws[1])
    assert len(np.unique(draws[0])) == 3
    assert torch.equal(torch.get_rng_state(), before)
    fixed = [agent.predict(obs, deterministic=True)[0] for _ in range(2)]
    assert np.array_equal(fixed[0], fixed[1])


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        (np.zeros(2), r"'state' has shape \(2,\); expected \(3\)"),
        ({"stat": np.zeros(3)}, "'state' is missing"),
        ({"state": np.zeros(3), "extra": 1}, "no observation 'extra'"),
        (np.zeros((0, 3)), "empty"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(obs, said, trained):
    with pytest.raises(dreamlab.LabError, match=said):
        dreamlab.load(trained("sac")).predict(obs)


def test_a_state_of_another_batch_is_refused(trained):
    agent = dreamlab.load(trained("sac"))
    _, state = agent.predict(np.zeros((2, 3)))
    with pytest.raises(dreamlab.LabError, match="it is of 2 environments, the observation of 1"):
        agent.predict(np.zeros(3), state)
    with pytest.raises(dreamlab.LabError, match="expected 2 flags"):
        agent.predict(np.zeros((2, 3)), state, episode_start=[True] * 3)


def test_a_hub_folder_is_loaded_like_a_run(trained, tmp_path):
    assert main(["export-policy", str(trained("sac")), "--hub", str(tmp_path / "hub")]) == 0
    obs = np.array([0.5, 0.5, 1.0])
    actions = [dreamlab.load(p).predict(obs)[0] for p in (trained("sac"), str(tmp_path / "hub"))]
    assert np.array_equal(actions[0], actions[1])


# -- dreams ---------------------------------------------------------------------------------------


def test_a_dream_goes_on_from_a_real_episode(trained):
    agent = dreamlab.load(trained("dreamer"))
    dream = agent.imagine(6, context=3, seed=2)
    assert {k: v.shape for k, v in dream.obs.items()} == {"state": (6, 3)}
    assert dream.reward.shape == dream.cont.shape == (6,)
    assert ((dream.cont >= 0) & (dream.cont <= 1)).all()
    assert np.abs(dream.action).max() <= 2.0
    assert dream.real is not None
    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=2)
    agent.seed(0)
    action, state = agent.predict(obs)
    for _ in range(2):
        obs, *_ = env.step(action)
        action, state = agent.predict(obs, state)
    for i, taken in enumerate(dream.action):  # what is called real is what really comes
        obs, reward, *_ = env.step(taken)
        np.testing.assert_array_equal(dream.real.obs["state"][i], obs)
        assert dream.real.reward[i] == pytest.approx(reward)


def test_a_batch_dreams_with_the_actions_it_is_given(trained):
    agent = dreamlab.load(trained("dreamer"))
    _, state = agent.predict(np.eye(3, dtype=np.float32)[:2])
    actions = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4, 1)
    dream = agent.imagine(4, state, actions=actions)
    np.testing.assert_allclose(dream.action, actions, atol=1e-6)
    assert dream.obs["state"].shape == (2, 4, 3)
    assert dream.real is None
    for wrong, said in ((actions[:1], "expected"), (actions[:, :2], r"\[2, 4, ...\]")):
        with pytest.raises(dreamlab.LabError, match=said):
            agent.imagine(4, state, actions=wrong)
    with pytest.raises(dreamlab.LabError, match="have no effect"):
        agent.imagine(4, state, context=3)


def test_an_agent_without_a_world_model_says_so(trained):
    with pytest.raises(dreamlab.LabError, match="SAC has no world model"):
        dreamlab.load(trained("sac")).imagine()


def nested() -> gym.Env:
    """Return an environment whose actions are a dictionary of choices that do not begin at 0."""
    env: Any = gym.make("CartPole-v1")
    parts = {"a": gym.spaces.Discrete(3, start=5), "b": gym.spaces.MultiDiscrete([2, 4])}
    return gym.wrappers.TransformAction(env, lambda action: 0, gym.spaces.Dict(parts))


def test_actions_go_into_the_units_of_the_environment_and_back():
    from dreamlab.envs.action_units import ActionUnits
    from dreamlab.envs.wrappers import FlatActions, FromZero, ScaleAction

    shifted = gym.wrappers.TransformAction(
        gym.make("CartPole-v1"), lambda a: a - 7, gym.spaces.Discrete(2, start=7)
    )
    cases: list[tuple[gym.Env, Any]] = [
        (ScaleAction(gym.make("Pendulum-v1")), np.array([1.5], np.float32)),
        (FromZero(shifted), np.int64(8)),
        (FlatActions(nested()), {"a": 6, "b": np.array([1, 2])}),
    ]
    for env, own in cases:
        units = ActionUnits(env)
        plain = units.plain(own)
        assert env.action_space.contains(plain)
        again = units.own(plain)
        assert str(again) == str(own)
