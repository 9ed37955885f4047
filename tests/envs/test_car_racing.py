"""CarRacing as the paper shows it: the track alone, inverted, a brake that is off at zero."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from dreamlab.envs.suites.car_racing import PaperView


class Pedals(gym.Env):
    """Remembers what it was told; its picture is black above and white where instruments are."""

    observation_space = gym.spaces.Box(0, 255, (96, 96, 3), np.uint8)
    action_space = gym.spaces.Box(np.array([-1, 0, 0]), np.array([1, 1, 1]), (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        return self.picture(), {}

    def step(self, action):
        self.told = action
        return self.picture(), 1.0, False, False, {}

    def picture(self):
        frame = np.zeros((96, 96, 3), np.uint8)
        frame[84:] = 255
        return frame


def test_the_instruments_are_cut_off_and_colours_inverted():
    env = PaperView(Pedals())
    obs, _ = env.reset()
    assert obs.shape == env.observation_space.shape == (84, 96, 3)
    assert (obs == 255).all()
    assert (env.step(np.zeros(3))[0] == 255).all()


def test_gas_is_at_half_and_the_brake_off_at_zero():
    env = PaperView(Pedals())
    env.reset()
    for action, wanted in (
        ([0, 0, 0], [0, 0.5, 0]), ([-1, -1, -1], [-1, 0, 0]), ([0.5, 1, 0.25], [0.5, 1, 0.25]),
    ):  # fmt: skip
        env.step(np.array(action, np.float32))
        np.testing.assert_allclose(env.unwrapped.told, wanted)
