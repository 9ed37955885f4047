"""What each suite does to its simulator is what the originals do, or what we say we do instead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dreamlab.core.errors import ConfigError
from dreamlab.envs import suites
from dreamlab.envs.check import _trace
from dreamlab.envs.suites import atari, crafter, dmc, minecraft, pinpad
from dreamlab.envs.vector import EnvConfig, Envs, make_env
from tests.envs.test_suites import CASES


class Console:
    """Plays the part of ALE: the screen shows the frame number, a life is lost at frame 6."""

    def __init__(self, over_at: int = 10_000) -> None:
        self.frame, self.over_at, self.acts = 0, over_at, []

    def getLegalActionSet(self) -> list[int]:  # noqa: N802
        return [0, 1, 2]

    getMinimalActionSet = getLegalActionSet  # noqa: N815

    def getScreenDims(self) -> tuple[int, int]:  # noqa: N802
        return 1, 1

    def getScreenRGB(self, out: Any) -> None:  # noqa: N802
        out[:] = 255 - self.frame % 256 if self.frame % 2 else self.frame % 256

    def cloneSystemState(self) -> int:  # noqa: N802
        return 0

    def restoreSystemState(self, state: int) -> None:  # noqa: N802
        self.acts = []

    def reset_game(self) -> None:
        self.frame = 0

    def lives(self) -> int:
        return 3 if self.frame < 6 else 2

    def game_over(self, with_truncation: bool = True) -> bool:
        return self.frame >= self.over_at

    def act(self, action: int) -> float:
        self.frame += 1
        self.acts.append(action)
        return 2.0


def console(over_at: int = 10_000, noops: int = 0, **settings: Any) -> atari.Atari:
    env = atari.Atari(Console(over_at), True, 4, noops)
    for name, value in settings.items():
        setattr(env, name, value)
    return env


def test_atari_repeats_and_shows_the_brighter_of_the_last_two_frames():
    env = console()
    env.reset(seed=0)
    obs, reward, *_ = env.step(1)
    assert reward == 8
    assert obs.max() == 252  # frame 3 shows 255 - 3, frame 4 shows 4
    assert env.ale.acts == [1, 1, 1, 1]


def test_atari_starts_with_up_to_thirty_noops_drawn_from_the_seed():
    env = console(noops=30)
    counts = []
    for seed in range(40):
        env.reset(seed=seed)
        counts.append(len(env.ale.acts))
    assert set(counts) <= set(range(31))
    assert len(set(counts)) > 10
    env.reset(seed=3)
    assert len(env.ale.acts) == counts[3]


def test_atari_actions_stick_a_quarter_of_the_time():
    env = console(sticky=True)
    env.reset(seed=0)
    for i in range(500):
        env.step(1 + i % 2)
    asked = [1 + i // 4 % 2 for i in range(2000)]
    # At the first frame of a step the action changes, unless it sticks to the one before.
    stuck = np.mean([a != b for a, b in zip(asked[::4], env.ale.acts[::4], strict=True)])
    assert 0.18 < stuck < 0.32


@pytest.mark.parametrize(
    ("lives", "ends", "cut"),
    [("unused", False, False), ("discount", False, True), ("reset", True, False)],
)
def test_a_lost_life_means_what_the_option_says(lives: str, ends: bool, cut: bool):
    env = console(lives_mode=lives)
    env.reset(seed=0)
    assert env.step(0)[2:] == (False, False, {})
    _, _, terminated, truncated, info = env.step(0)  # frame 8: the life went at frame 6
    assert (terminated, truncated) == (ends, False)
    assert info.get("is_terminal", False) == cut


def test_atari_time_limit_truncates_and_does_not_terminate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(atari, "MAX_FRAMES", 8)
    env = console()
    env.reset(seed=0)
    assert env.step(0)[2:4] == (False, False)
    assert env.step(0)[2:4] == (False, True)
    over = console(over_at=6)
    over.reset(seed=0)
    over.step(0)
    assert over.step(0)[2:4] == (True, False)


def test_atari_rewards_are_clipped_only_when_asked():
    env = console(clip_reward=True)
    env.reset(seed=0)
    assert env.step(0)[1] == 1


def test_the_lists_of_games_are_the_published_ones():
    assert len(set(atari.ATARI_57)) == 57
    assert len(set(atari.ATARI_100K)) == 26
    assert set(atari.ATARI_100K) <= set(atari.ATARI_57)
    assert (len(dmc.PROPRIO_18), len(dmc.VISION_20)) == (18, 20)


@pytest.mark.env("atari")
def test_every_listed_game_is_there_and_a_misspelt_one_is_not():
    from ale_py import roms

    assert set(atari.ATARI_57) <= set(roms.get_all_rom_ids())
    with pytest.raises(ConfigError, match="Did you mean 'breakout'"):
        suites.make("atari", "brakeout", {})


@pytest.mark.env("atari")
def test_atari_actions_are_all_or_those_needed():
    full, small = (suites.make("atari", "pong", {"actions": a}) for a in ("all", "needed"))
    assert (full.action_space.n, small.action_space.n) == (18, 6)  # type: ignore[attr-defined]


@pytest.mark.env("dmc")
def test_dmc_ends_by_truncation_after_a_thousand_frames():
    env = make_env(EnvConfig("pendulum_swingup", "dmc", repeat=4), 0, 0)
    env.reset()
    for _ in range(250):
        _, _, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
    assert (terminated, truncated) == (False, True)  # type: ignore[possibly-undefined]


@pytest.mark.env("dmc")
def test_dmc_from_joints_does_not_draw(monkeypatch: pytest.MonkeyPatch):
    env = suites.make("dmc", "walker_walk", {})
    monkeypatch.setattr(type(env), "_draw", lambda *_: pytest.fail("drew a picture"))
    env.reset(seed=0)
    obs, *_ = env.step(env.action_space.sample())
    assert set(obs) == {"orientations", "height", "velocity"}
    assert obs["height"].shape == (1,)


@pytest.mark.env("dmc")
def test_dmc_repeats_draw_one_picture_per_decision(monkeypatch: pytest.MonkeyPatch):
    config = EnvConfig("walker_walk", "dmc", {"obs": "vision", "fast_render": True}, repeat=4)
    env = make_env(config, 0, 0)
    drawn: list[int] = []
    draw = env.unwrapped._draw  # type: ignore[attr-defined]
    monkeypatch.setattr(env.unwrapped, "_draw", lambda *a: drawn.append(1) or draw(*a))
    env.reset()
    for _ in range(3):
        env.step(env.action_space.sample())
    assert len(drawn) == 4


@pytest.mark.env("dmc")
def test_a_misspelt_task_gets_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean 'walker_walk'"):
        suites.make("dmc", "walker_wak", {})


@pytest.mark.env("crafter")
def test_crafter_tells_achievements_at_the_end_and_the_limit_truncates():
    envs = Envs(EnvConfig("reward", "crafter", {"length": 5}), seed=0)
    envs.reset()
    for _ in range(5):
        step = envs.step(np.array([0]))
    assert step.is_last[0]  # type: ignore[possibly-undefined]
    assert not step.is_terminal[0]  # type: ignore[possibly-undefined]
    (final,) = envs.pop_finals()
    assert sum(k.startswith("log/achievement_") for k in final) == 22
    assert final["log/achievements"] == 0
    envs.close()


@pytest.mark.env("crafter")
def test_looking_at_crafter_by_night_does_not_change_it():
    env = suites.make("crafter", "reward", {})
    env.reset(seed=0)
    env.env._step = 290  # type: ignore[attr-defined]
    env.step(0)
    random = env.env._world.random  # type: ignore[attr-defined]
    before = repr(random.get_state())
    env.render()
    assert repr(random.get_state()) == before


def test_the_crafter_score_is_a_geometric_mean():
    assert crafter.score([0, 0]) == 0
    assert crafter.score([100.0] * 22) == pytest.approx(100)
    assert crafter.score([0, 99]) == pytest.approx(9)  # exp((ln 1 + ln 100) / 2) - 1


def walk(env: Any, target: tuple[int, int]) -> float:
    total = 0.0
    while tuple(env.place) != target:
        gap = np.array(target) - env.place
        action = pinpad.MOVES.index(
            (int(np.sign(gap[0])), 0) if gap[0] else (0, int(np.sign(gap[1])))
        )
        total += env.step(action)[1]
    return total


def test_pinpad_rewards_the_pads_in_order_only():
    env: Any = pinpad.make("three")
    env.reset(seed=0)
    env.place = np.array([7, 6])
    # Through the empty middle, so that no other pad is touched on the way.
    assert walk(env, (7, 6)) == 0
    for middle, corner in (((4, 6), (4, 4)), ((7, 6), (7, 9))):
        assert walk(env, middle) == 0
        assert walk(env, corner) == 0
        assert walk(env, (corner[0], 6)) == 0
    assert list(env.touched) == [0, 1]
    walk(env, (11, 6))
    _, reward, *_ = env.step(pinpad.MOVES.index((0, -1)))
    _, second, *_ = env.step(pinpad.MOVES.index((0, -1)))
    assert reward + second == 10
    assert list(env.touched) == []


def test_pinpad_is_truncated_at_its_length_and_walls_hold():
    env: Any = pinpad.make("eight", length=20)
    env.reset(seed=0)
    for _ in range(20):
        obs, _, terminated, truncated, _ = env.step(pinpad.MOVES.index((-1, 0)))
    assert (terminated, truncated) == (False, True)  # type: ignore[possibly-undefined]
    assert env.place[0] == 1
    assert obs.shape == (64, 64, 3)  # type: ignore[possibly-undefined]


def test_minecraft_has_the_originals_actions():
    assert len(minecraft.commands()) == 25
    assert len(minecraft.MILESTONES) == 12


class Mine:
    """Plays the part of MineRL: health falls, and logs lie about."""

    class action_space:  # noqa: N801
        @staticmethod
        def noop() -> dict[str, Any]:
            return {**dict.fromkeys(minecraft.KEYS, 0), "camera": np.zeros(2, np.float32)}

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.seeds: list[int] = []

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> dict[str, Any]:
        return self._obs(20, {})

    def step(self, command: dict[str, Any]) -> Any:
        self.sent.append(command)
        return self._obs(18, {"log": 2}), 0.0, False, {}

    def _obs(self, life: int, inventory: dict[str, int]) -> dict[str, Any]:
        stats = {"life": life, "food": 20, "air": 300}
        held = {"mainhand": {"type": "air"}}
        pov = np.zeros((64, 64, 3), np.uint8)
        return {"pov": pov, "inventory": inventory, "equipped_items": held, "life_stats": stats}


def test_minecraft_rewards_firsts_and_health_and_limits_the_pitch():
    game = Mine()
    env = minecraft.Minecraft(game, ("air", "log"), (64, 64), length=7)
    obs, _ = env.reset(seed=5)
    assert game.seeds == [5]
    assert env.observation_space.contains(obs)
    assert env.step(1)[1] == pytest.approx(1 - 0.01 * 0.1)
    assert env.step(1)[1] == 0  # no second reward for logs
    for _ in range(5):
        _, _, terminated, truncated, info = env.step(2)  # look up
    assert sum(c["camera"][0] for c in game.sent) == -60
    assert (terminated, truncated) == (False, True)  # type: ignore[possibly-undefined]
    assert info["log/got_log"] == 1  # type: ignore[possibly-undefined]


@pytest.mark.env("mujoco")
def test_several_environments_draw_the_right_pictures_in_one_process():
    options = {"obs": "vision", "fast_render": True}
    alone = suites.make("mujoco", "Hopper-v5", options)
    want, _ = alone.reset(seed=0)
    other = suites.make("mujoco", "HalfCheetah-v5", options)
    other.reset(seed=0)
    assert np.array_equal(alone.reset(seed=0)[0], want)
    other.close()
    again, _ = alone.reset(seed=0)
    assert want.std() > 5
    assert np.array_equal(again, want)


SCRIPT = """
import json, sys
from dreamlab.envs import suites
from dreamlab.envs.check import _trace
cases = json.loads(sys.argv[1])
out = [[_trace(suites.make(s, t, o), seed, n) for seed in (0, 1)] for s, t, o, n in cases]
print("RESULT" + json.dumps(out))
"""


def traced(cases: list[Any], hash_seed: int) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    # Objects at other addresses, for what is ordered by them.
    script = f"kept = [object() for _ in range({hash_seed * 9999})]\n{SCRIPT}"
    command = [sys.executable, "-c", script, json.dumps(cases)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def assert_same_in_two_processes(cases: list[Any]) -> None:
    outs = [p.communicate()[0] for p in [traced(cases, 1), traced(cases, 2)]]
    one, two = (json.loads(out.split("RESULT")[1]) for out in outs)
    assert [c[:2] for c, a, b in zip(cases, one, two, strict=True) if a != b] == []


@pytest.mark.slow
@pytest.mark.env("crafter")
def test_crafter_is_the_same_in_another_process():
    assert_same_in_two_processes([("crafter", "reward", {}, 250)])


@pytest.mark.slow
def test_every_suite_is_the_same_in_another_process():
    from tests.envs.conftest import INSTALLED

    chosen = [p for p in CASES if all(INSTALLED[m.args[0]] for m in p.marks if m.name == "env")]
    assert_same_in_two_processes([(*p.values, 30) for p in chosen])


def test_a_trace_is_a_list_of_checksums():
    env = suites.make("dummy", "counting", {"length": 2})
    assert len(_trace(env, 0, 10)) == 3
