"""DeepMind Lab (Beattie et al. 2016), against the API of its `deepmind_lab` package."""

from __future__ import annotations

import zlib
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, MissingExtraError, require
from dreamlab.core.limits import PositiveInt, Side

Info = dict[str, Any]

# Turn, look up or down, strafe, walk, fire, jump, crouch (the 15 actions of Hessel et al. 2019).
ACTIONS = np.array(
    [
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-10, 0, 0, 0, 0, 0, 0),
        (10, 0, 0, 0, 0, 0, 0),
        (-60, 0, 0, 0, 0, 0, 0),
        (60, 0, 0, 0, 0, 0, 0),
        (0, 10, 0, 0, 0, 0, 0),
        (0, -10, 0, 0, 0, 0, 0),
        (-10, 0, 0, 1, 0, 0, 0),
        (10, 0, 0, 1, 0, 0, 0),
        (-60, 0, 0, 1, 0, 0, 0),
        (60, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 1, 0, 0),
    ],
    np.intc,
)
LANGUAGE = (
    *("language_answer_quantitative_question", "language_execute_random_task"),
    *("language_select_described_object", "language_select_located_object"),
)
NUM_WORDS, WORD_DIM, BUCKETS = 32, 32, 65_536


class DMLab(gym.Env[Any, Any]):
    """One level; its end is a termination, as in the originals' episodic setting."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, lab: Any, size: tuple[int, int], repeat: int, language: bool) -> None:
        self.lab, self.language, self.frames_per_step = lab, language, repeat
        self.action_space = spaces.Discrete(len(ACTIONS))
        found: dict[str, spaces.Space[Any]] = {"image": spaces.Box(0, 255, (*size, 3), np.uint8)}
        if language:
            found["instr"] = spaces.Box(-np.inf, np.inf, (NUM_WORDS * WORD_DIM,), np.float32)
            random = np.random.RandomState(0)
            self.words = random.normal(0, 1, (BUCKETS, WORD_DIM)).astype(np.float32)
        self.observation_space = spaces.Dict(found)
        self.last: dict[str, Any] = {}

    def _obs(self) -> dict[str, Any]:
        seen = self.lab.observations()
        self.last = {"image": seen["RGB_INTERLEAVED"]}
        if self.language:
            self.last["instr"] = self._embed(str(seen["INSTR"]))
        return self.last

    def _embed(self, text: str) -> Any:
        out = np.zeros((NUM_WORDS, WORD_DIM), np.float32)
        for i, word in enumerate(text.lower().split()[:NUM_WORDS]):
            out[i] = self.words[zlib.crc32(word.encode()) % BUCKETS]
        return out.ravel()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.lab.reset(seed=int(self.np_random.integers(2**31 - 1)))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        reward = self.lab.step(ACTIONS[int(action)], num_steps=self.frames_per_step)
        running = bool(self.lab.is_running())
        # There is nothing to see after the end: the last image stands for it.
        return self._obs() if running else self.last, float(reward), not running, False, {}

    def render(self) -> Any:
        return self.last.get("image")

    def close(self) -> None:
        self.lab.close()


def make(
    task: str, size: tuple[Side, Side] = (64, 64), repeat: PositiveInt = 4
) -> gym.Env[Any, Any]:
    """Return a level of DMLab-30 by its name, e.g. `explore_goal_locations_small`."""
    try:
        deepmind_lab = require("deepmind_lab", "dmlab")
    except MissingExtraError:
        raise MissingExtraError(
            "deepmind_lab is not installed, and is not on PyPI: build it following "
            "https://github.com/google-deepmind/lab, then pip install its wheel"
        ) from None
    if not task.replace("_", "").isalnum():  # a level is a script, looked up below one folder
        raise ConfigError(f"env.id: {task!r} is not a level of DMLab-30")
    language = task in LANGUAGE
    seen = ["RGB_INTERLEAVED"] + ["INSTR"] * language
    config = {"height": str(size[0]), "width": str(size[1]), "logLevel": "WARN"}
    lab = deepmind_lab.Lab(level=f"contributed/dmlab30/{task}", observations=seen, config=config)
    return DMLab(lab, size, repeat, language)
