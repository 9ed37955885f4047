"""Pin Pad (Hafner et al. 2022): step on coloured pads in the right order, seen from above."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.limits import PositiveInt

Info = dict[str, Any]

WIDTH, HEIGHT, CELL = 16, 14, 4  # cells, cells, pixels; two more rows show the pads touched
COLORS = np.array(
    [
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
        (255, 255, 0),
        (255, 0, 255),
        (0, 255, 255),
        (128, 0, 128),
        (0, 128, 128),
    ],
    np.uint8,
)
WALL, FLOOR, PLAYER = (192, 192, 192), (255, 255, 255), (0, 0, 0)
# Pads as (left, top, width, height) in cells, in the order they must be touched.
CORNERS = ((1, 1, 4, 4), (11, 1, 4, 4), (11, 9, 4, 4), (1, 9, 4, 4))
TOP = tuple((x, 1, 3, 3) for x in (1, 6, 12))
BOTTOM = tuple((x, 10, 3, 3) for x in (12, 6, 1))
PADS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "three": ((1, 1, 4, 4), (6, 9, 4, 4), (11, 1, 4, 4)),
    "four": CORNERS,
    "five": ((1, 1, 4, 3), (11, 1, 4, 3), (11, 10, 4, 3), (1, 10, 4, 3), (6, 6, 4, 2)),
    "six": (*((x, 1, 3, 4) for x in (1, 6, 12)), *((x, 9, 3, 4) for x in (12, 6, 1))),
    "seven": (*TOP, *BOTTOM, (6, 6, 3, 2)),
    "eight": (*TOP, (12, 6, 3, 2), *BOTTOM, (1, 6, 3, 2)),
}
MOVES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))  # none, down, up, right, left
REWARD = 10.0


class PinPad(gym.Env[Any, Any]):
    """Rewards touching all pads in order, without another pad between; then the order starts over.

    The agent starts on a random free cell, and again after every success. Nothing terminates it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, pads: tuple[tuple[int, int, int, int], ...], length: int) -> None:
        self.num_pads, self.length, self.count = len(pads), length, 0
        self.action_space = spaces.Discrete(len(MOVES))
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.pad = np.full((WIDTH, HEIGHT), -1)  # which pad lies on a cell
        for number, (left, top, width, height) in enumerate(pads):
            self.pad[left : left + width, top : top + height] = number
        inner = np.zeros((WIDTH, HEIGHT), bool)
        inner[1:-1, 1:-1] = True
        self.free = np.argwhere(inner & (self.pad < 0))
        self.touched: deque[int] = deque(maxlen=self.num_pads)
        self.place = self.free[0]
        self.ground = self._ground()

    def _ground(self) -> Any:
        cells = np.full((WIDTH, HEIGHT, 3), WALL, np.uint8)
        cells[1:-1, 1:-1] = FLOOR
        cells[self.pad >= 0] = COLORS[self.pad[self.pad >= 0]]
        return cells

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.count = 0
        self._begin()
        return self._obs(), {}

    def _begin(self) -> None:
        self.touched.clear()
        self.place = self.free[self.np_random.integers(len(self.free))]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.count += 1
        limit = np.array([WIDTH - 2, HEIGHT - 2])
        self.place = np.clip(self.place + MOVES[int(action)], 1, limit)
        number = int(self.pad[tuple(self.place)])
        if number >= 0 and (not self.touched or self.touched[-1] != number):
            self.touched.append(number)
        solved = list(self.touched) == list(range(self.num_pads))
        if solved:
            self._begin()
        return self._obs(), REWARD * solved, False, self.count >= self.length, {}

    def _obs(self) -> Any:
        cells = np.full((WIDTH, HEIGHT + 2, 3), WALL, np.uint8)
        cells[:, :HEIGHT] = self.ground
        cells[tuple(self.place)] = PLAYER
        for i, number in enumerate(self.touched):
            cells[2 * i, HEIGHT + 1] = COLORS[number]
        return cells.repeat(CELL, 0).repeat(CELL, 1).transpose(1, 0, 2)

    def render(self) -> Any:
        return self._obs().repeat(4, 0).repeat(4, 1)


def make(task: str = "three", length: PositiveInt = 10_000) -> gym.Env[Any, Any]:
    """Return the room with that many pads, `three` to `eight`."""
    if task not in PADS:
        raise ConfigError(unknown("pin pad", task, PADS, "env.id"))
    return PinPad(PADS[task], length)
