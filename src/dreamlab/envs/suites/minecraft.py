"""Minecraft from nothing to a diamond (Hafner et al. 2023), against the API of MineRL 0.4."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, MissingExtraError, require, unknown
from dreamlab.core.limits import Positive, PositiveInt, Side

Info = dict[str, Any]
Command = dict[str, Any]

MILESTONES = (
    *("log", "planks", "stick", "crafting_table", "wooden_pickaxe", "cobblestone"),
    *("stone_pickaxe", "iron_ore", "furnace", "iron_ingot", "iron_pickaxe", "diamond"),
)
KEYS = ("attack", "forward", "back", "left", "right", "jump")
PLACED = ("none", "dirt", "crafting_table", "furnace")
CRAFTED = ("none", "planks", "stick", "crafting_table")
CRAFTED_NEARBY = ("none", "wooden_pickaxe", "stone_pickaxe", "iron_pickaxe", "furnace")
EQUIPPED = ("none", "wooden_pickaxe", "stone_pickaxe", "iron_pickaxe")
SMELTED = ("none", "iron_ingot")
TURN = 15.0  # degrees
PITCH_LIMIT = 60.0
STICKY_JUMP = 10  # steps that one jump is held, so that the agent gets onto a block
HEALTH_SCALE = 0.01


def commands() -> list[Command]:
    """Return what each of the 25 actions sends to the game, over doing nothing."""
    turns = ((-TURN, 0.0), (TURN, 0.0), (0.0, -TURN), (0.0, TURN))  # up, down, left, right
    return [
        {},
        {"attack": 1},
        *({"camera": np.array(turn, np.float32)} for turn in turns),
        *({key: 1} for key in ("forward", "back", "left", "right")),
        {"jump": 1, "forward": 1},
        {"place": "dirt"},
        *({"craft": item} for item in CRAFTED[1:]),
        *({"place": item} for item in PLACED[2:]),
        *({"nearbyCraft": item} for item in CRAFTED_NEARBY[1:]),
        *({"equip": item} for item in EQUIPPED[1:]),
        {"nearbySmelt": "iron_ingot"},
    ]


class Minecraft(gym.Env[Any, Any]):
    """Rewards the first of each of twelve items on the way to a diamond, and staying healthy."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self, env: Any, items: tuple[str, ...], size: tuple[int, int], length: int
    ) -> None:
        self.env, self.items, self.length = env, items, length
        self.commands = commands()
        self.action_space = spaces.Discrete(len(self.commands))
        many = spaces.Box(-np.inf, np.inf, (len(items),), np.float32)
        one = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        image = spaces.Box(0, 255, (*size, 3), np.uint8)
        names = ("inventory", "inventory_max", "equipped")
        scalars = ("health", "hunger", "breath")
        self.observation_space = spaces.Dict(
            {"image": image, **dict.fromkeys(names, many), **dict.fromkeys(scalars, one)}
        )
        self.obs: dict[str, Any] = {}
        self._begin()

    def _begin(self) -> None:
        self.most = np.zeros(len(self.items), np.float32)
        self.got: set[str] = set()
        self.count, self.pitch, self.jumps = 0, 0.0, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self.env.seed(seed)
        self._begin()
        self.obs = self._obs(self.env.reset())
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.count += 1
        seen, _, done, _ = self.env.step(self._command(int(action)))
        health = float(self.obs["health"][0])
        self.obs = self._obs(seen)
        reward = HEALTH_SCALE * (float(self.obs["health"][0]) - health) + self._milestones()
        dead = bool(done) or float(self.obs["health"][0]) <= 0
        truncated = not dead and self.count >= self.length
        told = {f"log/got_{m}": float(m in self.got) for m in MILESTONES}
        return self.obs, reward, dead, truncated, told

    def _command(self, action: int) -> Command:
        """Return the full command: sticky jump on, and no looking beyond 60 degrees."""
        command = {**self.env.action_space.noop(), **self.commands[action]}
        self.jumps = STICKY_JUMP if command["jump"] else max(0, self.jumps - 1)
        if self.jumps:
            command |= {"jump": 1, "forward": 1}
        pitch, yaw = command["camera"]
        if abs(self.pitch + pitch) > PITCH_LIMIT:
            pitch = 0.0
        self.pitch += float(pitch)
        return {**command, "camera": np.array((pitch, yaw), np.float32)}

    def _milestones(self) -> float:
        counts = dict(zip(self.items, self.obs["inventory"], strict=True))
        new = {m for m in MILESTONES if counts.get(m, 0) > 0} - self.got
        self.got |= new
        return float(len(new))

    def _obs(self, seen: Any) -> dict[str, Any]:
        inventory = np.array([seen["inventory"].get(i, 0) for i in self.items], np.float32)
        self.most = np.maximum(self.most, inventory)
        held = seen["equipped_items"]["mainhand"]["type"]
        life = seen["life_stats"]
        return {
            "image": seen["pov"],
            "inventory": inventory,
            "inventory_max": self.most.copy(),
            "equipped": np.array([i == held for i in self.items], np.float32),
            "health": np.array([float(life["life"]) / 20], np.float32),
            "hunger": np.array([float(life["food"]) / 20], np.float32),
            "breath": np.array([float(life["air"]) / 300], np.float32),
        }

    def render(self) -> Any:
        return self.obs.get("image")

    def close(self) -> None:
        self.env.close()


def _spec(size: tuple[int, int], break_speed: float) -> Any:
    """Return MineRL's description of the game: what is seen, what can be done, and the world."""
    handlers = require("minerl.herobraine.hero.handlers", "minecraft")
    handler = require("minerl.herobraine.hero.handler", "minecraft")
    mc = require("minerl.herobraine.hero.mc", "minecraft")
    base = require("minerl.herobraine.env_specs.simple_embodiment", "minecraft")

    class BreakSpeed(handler.Handler):
        def to_string(self) -> str:
            return f"break_speed({break_speed})"

        def xml_template(self) -> str:
            return f"<BreakSpeedMultiplier>{break_speed}</BreakSpeedMultiplier>"

    keys = [handlers.KeybasedCommandAction(k, mc.INVERSE_KEYMAP[k]) for k in KEYS]
    parts: dict[str, list[Any]] = {
        "create_agent_start": [BreakSpeed()],
        "create_agent_handlers": [],
        "create_monitors": [],
        "create_rewardables": [],
        "create_server_decorators": [],
        "create_server_world_generators": [handlers.DefaultWorldGenerator(force_reset=True)],
        "create_server_quit_producers": [handlers.ServerQuitWhenAnyAgentFinishes()],
        "create_server_initial_conditions": [
            handlers.TimeInitialCondition(allow_passage_of_time=True, start_time=0),
            handlers.SpawningInitialCondition(allow_spawning=True),
        ],
        "create_observables": [
            handlers.POVObservation(size[::-1]),
            handlers.FlatInventoryObservation(mc.ALL_ITEMS),
            handlers.EquippedItemObservation(mc.ALL_ITEMS, _default="air", _other="other"),
            handlers.ObservationFromLifeStats(),
        ],
        "create_actionables": [
            *keys,
            handlers.CameraAction(),
            handlers.PlaceBlock(list(PLACED), _other="none", _default="none"),
            handlers.EquipAction(list(EQUIPPED), _other="none", _default="none"),
            handlers.CraftAction(list(CRAFTED), _other="none", _default="none"),
            handlers.CraftNearbyAction(list(CRAFTED_NEARBY), _other="none", _default="none"),
            handlers.SmeltItemNearby(list(SMELTED), _other="none", _default="none"),
        ],
    }
    methods: dict[str, Any] = {k: (lambda self, v=v: v) for k, v in parts.items()}
    methods["is_from_folder"] = lambda self, folder: False
    methods["get_docstring"] = lambda self: ""
    methods["determine_success_from_rewards"] = lambda self, rewards: True
    cls = type("Diamond", (base.SimpleEmbodimentEnvSpec,), methods)
    return cls(name="DreamlabDiamond-v0", max_episode_steps=None, resolution=size[::-1])


def make(
    task: str = "diamond",
    size: tuple[Side, Side] = (64, 64),
    break_speed: Positive = 100.0,
    length: PositiveInt = 36_000,
) -> gym.Env[Any, Any]:
    """Return the game; blocks break `break_speed` times faster than for a human."""
    if task != "diamond":
        raise ConfigError(unknown("minecraft task", task, ("diamond",), "env.id"))
    try:
        require("minerl", "minecraft")
    except MissingExtraError:
        raise MissingExtraError(
            "minerl is not installed. It needs Java 8 and an older setuptools: "
            "pip install 'setuptools<66' 'wheel<0.39' && pip install minerl==0.4.4"
        ) from None
    mc = require("minerl.herobraine.hero.mc", "minecraft")
    env = _spec(size, break_speed).make()
    return Minecraft(env, tuple(mc.ALL_ITEMS), size, length)
