"""Running normalisation agrees with numpy over all that was seen, and survives a checkpoint."""

from __future__ import annotations

import numpy as np

from dreamlab.core.types import ArraySpec, Spec, Step
from dreamlab.envs.normalize import NormalizeConfig, Normalizer, RunningMoments

SPEC = Spec({"state": ArraySpec((3,)), "image": ArraySpec((2, 2, 3), "uint8")}, ArraySpec((1,)))


def step(state: np.ndarray, reward: list[float], first: list[bool] | None = None) -> Step:
    n = len(state)
    no = np.zeros(n, bool)
    image = np.full((n, 2, 2, 3), 9, np.uint8)
    is_first = np.array(first) if first else no
    return Step({"state": state, "image": image}, np.array(reward, np.float32), is_first, no, no)


def test_moments_match_numpy_over_batches():
    data = np.random.default_rng(0).normal(3, 2, (40, 3))
    moments = RunningMoments((3,))
    for part in np.split(data, 8):
        moments.update(part)
    np.testing.assert_allclose(moments.mean, data.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.var, data.var(0), rtol=1e-3)


def test_observations_are_centred_scaled_and_clipped_and_images_left_alone():
    data = np.random.default_rng(0).normal(5, 3, (1000, 3)).astype(np.float32)
    norm = Normalizer(NormalizeConfig(clip=2), None, SPEC, 1000)
    out = norm(step(data, [0] * 1000))
    np.testing.assert_allclose(out.obs["state"].mean(0), 0, atol=0.05)
    assert np.abs(out.obs["state"]).max() == 2
    assert out.obs["state"].dtype == np.float32
    assert (out.obs["image"] == 9).all()


def test_without_configs_steps_pass_untouched():
    norm = Normalizer(None, None, SPEC, 1)
    one = step(np.ones((1, 3), np.float32), [5])
    assert norm(one) is one


def test_the_reward_is_divided_by_the_deviation_of_the_return():
    norm = Normalizer(None, NormalizeConfig(gamma=0.5), SPEC, 1)
    obs = np.zeros((1, 3), np.float32)
    norm(step(obs, [0], [True]))
    returns = []
    for reward in (1.0, 2.0, 3.0):
        out = norm(step(obs, [reward]))
        returns.append((returns[-1] if returns else 0) * 0.5 + reward)
    np.testing.assert_allclose(out.reward, 3 / np.std(returns), rtol=1e-3)  # type: ignore[possibly-undefined]


def test_a_first_step_begins_the_return_anew():
    norm = Normalizer(None, NormalizeConfig(), SPEC, 2)
    obs = np.zeros((2, 3), np.float32)
    norm(step(obs, [1, 1]))
    norm(step(obs, [0, 1], [True, False]))
    assert norm.returns.tolist() == [0, 1.99]


def test_frozen_statistics_do_not_move():
    norm = Normalizer(NormalizeConfig(), NormalizeConfig(), SPEC, 2)
    norm(step(np.random.default_rng(0).normal(size=(2, 3)), [1, 2]))
    norm.frozen = True
    before = repr(norm.get_state())
    norm(step(np.full((2, 3), 100.0), [9, 9]))
    assert repr(norm.get_state()) == before


def test_the_state_brings_the_same_numbers_back():
    rng = np.random.default_rng(0)
    one, two = (Normalizer(NormalizeConfig(), NormalizeConfig(), SPEC, 2) for _ in range(2))
    for _ in range(5):
        one(step(rng.normal(size=(2, 3)), [1, 2]))
    two.set_state(one.get_state())
    last = step(rng.normal(size=(2, 3)), [3, 4])
    a, b = one(last), two(last)
    assert np.array_equal(a.obs["state"], b.obs["state"])
    assert np.array_equal(a.reward, b.reward)
