"""Atari 2600 games through the Arcade Learning Environment (Bellemare et al. 2013)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, require, unknown
from dreamlab.core.limits import Range

Info = dict[str, Any]

ATARI_57 = (
    *("alien", "amidar", "assault", "asterix", "asteroids", "atlantis", "bank_heist"),
    *("battle_zone", "beam_rider", "berzerk", "bowling", "boxing", "breakout", "centipede"),
    *("chopper_command", "crazy_climber", "defender", "demon_attack", "double_dunk", "enduro"),
    *("fishing_derby", "freeway", "frostbite", "gopher", "gravitar", "hero", "ice_hockey"),
    *("jamesbond", "kangaroo", "krull", "kung_fu_master", "montezuma_revenge", "ms_pacman"),
    *("name_this_game", "phoenix", "pitfall", "pong", "private_eye", "qbert", "riverraid"),
    *("road_runner", "robotank", "seaquest", "skiing", "solaris", "space_invaders"),
    *("star_gunner", "surround", "tennis", "time_pilot", "tutankham", "up_n_down", "venture"),
    *("video_pinball", "wizard_of_wor", "yars_revenge", "zaxxon"),
)
ATARI_100K = (
    *("alien", "amidar", "assault", "asterix", "bank_heist", "battle_zone", "boxing"),
    *("breakout", "chopper_command", "crazy_climber", "demon_attack", "freeway", "frostbite"),
    *("gopher", "hero", "jamesbond", "kangaroo", "krull", "kung_fu_master", "ms_pacman"),
    *("pong", "private_eye", "qbert", "road_runner", "seaquest", "up_n_down"),
)
MAX_FRAMES = 108_000  # 30 minutes of play at 60 frames per second
STICKY = 0.25  # Machado et al. 2018


class Atari(gym.Env[Any, Any]):
    """One game: every step repeats the action and shows the brighter of the last two frames.

    All chance (no-op starts, sticky actions) is drawn from the seed given to `reset`, so an
    episode is a function of its seed and its actions. Resizing and gray scale are left to
    `EnvConfig.size` and `gray`, in the order of the original: pool, resize, gray.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, ale: Any, full_actions: bool, repeat: int, noops: int) -> None:
        self.ale, self.noops = ale, noops
        self.frames_per_step = repeat
        self.sticky, self.clip_reward, self.lives_mode = False, False, "unused"
        self.actions = ale.getLegalActionSet() if full_actions else ale.getMinimalActionSet()
        self.start = ale.cloneSystemState()
        height, width = ale.getScreenDims()
        self.action_space = spaces.Discrete(len(self.actions))
        self.observation_space = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.screens = np.zeros((2, height, width, 3), np.uint8)
        self.previous, self.frames, self.lives = self.actions[0], 0, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        # A game may keep memory over `reset_game`; the saved machine has none.
        self.ale.restoreSystemState(self.start)
        self.ale.reset_game()
        for _ in range(int(self.np_random.integers(self.noops + 1))):
            self.ale.act(0)
            if self.ale.game_over():
                self.ale.reset_game()
        self.previous, self.frames, self.lives = self.actions[0], 0, self.ale.lives()
        self.ale.getScreenRGB(self.screens[0])
        self.screens[1] = self.screens[0]
        return self.screens[0].copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        reward = 0.0
        for i in range(self.frames_per_step):
            reward += self.ale.act(self._felt(self.actions[int(action)]))
            self.frames += 1
            over = self.ale.game_over(with_truncation=False)
            if i >= self.frames_per_step - 2 or over:
                self.screens = self.screens[::-1]
                self.ale.getScreenRGB(self.screens[0])
            if over:
                break
        lost = self.ale.lives() < self.lives
        self.lives = self.ale.lives()
        terminated = over or (lost and self.lives_mode == "reset")  # type: ignore[possibly-undefined]
        info: Info = {"is_terminal": True} if lost and self.lives_mode == "discount" else {}
        truncated = not terminated and self.frames >= MAX_FRAMES
        if self.clip_reward and abs(reward) > 1:
            info["raw_reward"] = float(reward)
            reward = np.sign(reward)
        return self.screens.max(0), float(reward), terminated, truncated, info

    def _felt(self, action: Any) -> Any:
        """Return the action the game gets: sometimes, when sticky, the one of the frame before."""
        if self.sticky and self.np_random.random() < STICKY:
            return self.previous
        self.previous = action
        return action

    def render(self) -> Any:
        return self.screens.max(0)


def make(
    task: str,
    repeat: Annotated[int, Range(1, 1_000)] = 4,
    sticky: bool = True,
    actions: Literal["all", "needed"] = "all",
    lives: Literal["unused", "discount", "reset"] = "unused",
    noops: Annotated[int, Range(0, 10_000)] = 30,
    clip_reward: bool = False,
) -> gym.Env[Any, Any]:
    """Return a game by its name, e.g. `pong` (the 57 of `ATARI_57`, or any that ALE has).

    `lives` says what losing one means: nothing, no bootstrap but the game continues, or a new game.
    `clip_reward` gives the sign of the reward; returns are reported as the game counts them.
    """
    ale_py = require("ale_py", "atari")
    roms = require("ale_py.roms", "atari")
    known = roms.get_all_rom_ids()
    name = {"james_bond": "jamesbond"}.get(task, task)
    if name not in known:
        raise ConfigError(unknown("Atari game", task, known, "env.id"))
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.loadROM(roms.get_rom_path(name))
    env = Atari(ale, actions == "all", repeat, noops)
    env.sticky, env.clip_reward, env.lives_mode = sticky, clip_reward, lives
    return env
