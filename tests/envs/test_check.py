"""The validator finds what is wrong with an environment, and nothing in those that are right."""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from dreamlab.envs import suites
from dreamlab.envs.check import Limits, check
from dreamlab.envs.vector import EnvConfig

QUICK = Limits(steps=12, episode_steps=30, episode_s=2)


class Good(gym.Env[Any, Any]):
    """Keeps every rule; the others below each break one."""

    observation_space: Any = spaces.Box(-1, 1, (2,))
    action_space: Any = spaces.Box(-2, 2, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def _obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._obs(), 1.0, False, self.count >= 5, {}

    def render(self) -> Any:
        return np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


class NoSeed(Good):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class OldReset(Good):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class OldStep(Good):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class WrongShape(Good):
    def _obs(self) -> Any:
        return np.zeros(3, np.float32)


class WrongType(Good):
    observation_space = spaces.Box(0, 255, (2,), np.uint8)


class NotFinite(Good):
    def _obs(self) -> Any:
        return np.array([np.nan, 0], np.float32)


class Outside(Good):
    def _obs(self) -> Any:
        return np.array([5, 0], np.float32)


class NotAnArray(Good):
    def _obs(self) -> Any:
        return [0.0, 0.0]


class BadReward(Good):
    def step(self, action: Any) -> Any:
        return (super().step(action)[0], float("inf"), False, False, {})


class IntFlag(Good):
    def step(self, action: Any) -> Any:
        return (*super().step(action)[:2], 0, False, {})


class Unbounded(Good):
    action_space = spaces.Box(-np.inf, np.inf, (1,))


class OwnChance(Good):
    def _obs(self) -> Any:
        return np.random.uniform(-1, 1, 2).astype(np.float32)


class Endless(Good):
    def step(self, action: Any) -> Any:
        return (*super().step(action)[:3], False, {})


class Overwrites(Good):
    def _obs(self) -> Any:
        self.__dict__.setdefault("array", np.zeros(2, np.float32))[:] = super()._obs()
        return self.array


class Meddles(Good):
    def render(self) -> Any:
        self.np_random.random()
        return super().render()


class BadPicture(Good):
    def render(self) -> Any:
        return np.zeros((4, 4))


class ChannelsFirst(Good):
    observation_space = spaces.Box(0, 255, (3, 8, 8), np.uint8)

    def _obs(self) -> Any:
        return np.zeros((3, 8, 8), np.uint8)


class NoSpaces(gym.Env[Any, Any]):
    pass


class Raises(Good):
    def step(self, action: Any) -> Any:
        raise ValueError("the motor is off")


class Exits(Good):
    def step(self, action: Any) -> Any:
        sys.exit(0)


class Hangs(Good):
    def reset(self, **kwargs: Any) -> Any:
        time.sleep(600)


class HangsLater(Good):
    """Answers the first questions, and hangs in a vector."""

    def step(self, action: Any) -> Any:
        HangsLater.steps = getattr(HangsLater, "steps", 0) + 1
        if HangsLater.steps > 12:
            time.sleep(600)
        return super().step(action)


class Falls(Good):
    """Ends only where something happens, as a pole falls."""

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._obs(), 1.0, self.count >= 5, False, {}


def found(cls: type, **config: Any) -> list[tuple[str, str]]:
    if cls in (Hangs, HangsLater):
        config = {"step_timeout_s": 1.0}
    findings = check(EnvConfig(f"tests.envs.test_check:{cls.__name__}", **config), QUICK)
    return [(f.level, f.text) for f in findings]


def test_a_sound_environment_has_nothing_but_ok():
    result = found(Good)
    assert {level for level, _ in result} == {"ok"}
    text = " ".join(t for _, t in result)
    for word in (
        "reset accepts a seed",
        "same episode",
        "image",
        "resumes exactly",
        "were reset",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("cls", "level", "words"),
    [
        (NoSeed, "error", "super().reset(seed=seed)"),
        (OldReset, "error", "must return (observation, info dict)"),
        (OldStep, "error", "it returned 4 values"),
        (WrongShape, "error", "shape (3,), but the space says (2,)"),
        (WrongType, "error", "dtype float32, but the space says uint8"),
        (NotFinite, "error", "not finite"),
        (Outside, "warning", "outside its space"),
        (NotAnArray, "error", "return a numpy array"),
        (BadReward, "error", "the reward is inf"),
        (IntFlag, "error", "`terminated` must be a bool"),
        (Unbounded, "error", "unbounded"),
        (OwnChance, "warning", "ignores its seed"),
        (OwnChance, "warning", "cannot be resumed exactly"),
        (Endless, "warning", "env.time_limit"),
        (Overwrites, "error", "return a copy"),
        (Meddles, "error", "it must not"),
        (BadPicture, "error", "uint8 [height, width, 3]"),
        (ChannelsFirst, "error", "channels-first"),
        (NoSpaces, "error", "`observation_space` is None"),
        (Raises, "error", "ValueError: the motor is off"),
        (Exits, "error", "SystemExit: 0"),
        (Hangs, "error", "no answer within 1 s"),
        (HangsLater, "error", "no answer within 1 s"),
        (Falls, "warning", "no time limit"),
    ],
)
def test_each_fault_is_named_with_its_remedy(cls: type, level: str, words: str):
    assert any(lv == level and words in text for lv, text in found(cls)), found(cls)


@pytest.mark.parametrize(
    ("name", "config"), [("CartPole-v1", {}), ("tests.envs.test_check:Falls", {"time_limit": 9})]
)
def test_a_time_limit_is_seen(name: str, config: dict[str, Any]):
    texts = [f.text for f in check(EnvConfig(name, **config), QUICK)]
    assert any("was terminated after" in t for t in texts)
    assert not any("no time limit" in t for t in texts)


def test_an_environment_that_cannot_be_made_is_one_error():
    (finding,) = check(EnvConfig("no_such_module:Env"), QUICK)
    assert finding.level == "error"
    assert "no_such_module" in finding.text


@pytest.mark.parametrize("name", ["counting", "identity", "recall", "mixed", "pixels"])
def test_our_own_dummies_are_sound(name: str):
    assert not [f for f in check(EnvConfig(name, "dummy"), QUICK) if f.level == "error"]


def test_the_check_leaves_no_class_behind():
    assert "Good" not in suites.SUITES
