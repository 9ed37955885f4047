"""Looking inside the dream: what is written, what it says, and that looking changes nothing."""

from __future__ import annotations

from dataclasses import replace

import av
import gymnasium as gym
import numpy as np
import pytest
import torch

from dreamlab.components.world_models.open_loop import Sequences, errors, film
from dreamlab.components.world_models.open_loop import open_loop as look
from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.captions import CONTEXT, IMAGINED, step_head
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Batch, Curves, Spec
from dreamlab.engine.report import entries, painted
from dreamlab.envs.drawing import painter
from dreamlab.envs.entry_names import entry_names
from dreamlab.envs.vector import EnvConfig
from dreamlab.workflows.dreamer_v2 import DreamerV2, DreamerV2Config
from dreamlab.workflows.dreamer_v3 import DreamerV3, DreamerV3Config
from tests.helpers import config_of, metrics, open_config, open_loop, some_of

CLASSIC = (
    "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1",
)  # fmt: skip
TINY = ["tiny=true", "device=cpu", "training.total_frames=160", "eval.every_frames=0"]


def test_a_run_writes_films_curves_and_numbers(tmp_path):
    loop = open_loop(
        tmp_path / "a", "+experiment=dreamer_cartpole", *TINY, "report.every_frames=80"
    )
    assert loop.run() == "finished"
    names = sorted(p.name for p in (tmp_path / "a" / "report").iterdir())
    assert len([n for n in names if n.startswith("openloop_state") and n.endswith(".mp4")]) >= 2
    assert any(n.startswith("openloop_reward") for n in names)
    last = metrics(tmp_path / "a")[-1]
    assert {"report/openloop/state_h1", "report/openloop/reward_h4", "report/exploit_gap"} <= set(
        last
    )


@pytest.mark.parametrize(
    ("name", "env"),
    some_of(
        [
            ("dreamer_v2_cartpole", "CartPole-v1"),
            ("planet_cartpole_swingup", "Pendulum-v1"),
            ("dreamer_v1_cartpole_swingup", "Pendulum-v1"),
            ("dreamer_v2_cartpole_swingup", "Pendulum-v1"),
        ]
    ),
)
def test_the_ancestors_write_them_too(name, env, tmp_path):
    config = config_of(f"+experiment={name}", *TINY, "training.total_frames=200")
    loop = open_config(tmp_path / "a", replace(config, env=EnvConfig(env, num_envs=2)))
    assert loop.run() == "finished"
    names = {p.name.rsplit("_", 1)[0] + p.suffix for p in (tmp_path / "a" / "report").iterdir()}
    assert {"openloop_state.mp4", "openloop_state.png", "openloop_reward.png"} <= names
    last = metrics(tmp_path / "a")[-1]
    wanted = ("openloop/state_h1", "openloop/reward_h16", "openloop/cont_bias", "exploit_gap")
    assert {f"report/{k}" for k in wanted} <= set(last)


def test_an_ancestors_pictures_become_films_and_squashed_rewards_are_compared_as_learnt():
    spec = Spec({"image": ArraySpec((64, 64, 3), "uint8")}, ArraySpec((), "int64", classes=2))
    image = torch.randint(0, 256, (2, 8, 64, 64, 3), dtype=torch.uint8)
    flags = torch.zeros(2, 8, dtype=torch.bool)
    first = flags.clone()
    first[:, 0] = True
    action = torch.randint(0, 2, (2, 8))
    batch = Batch({"image": image}, action, torch.full((2, 8), 50.0), first, flags, flags)
    options = {**DreamerV2.tiny, "squash_reward": True}
    agent = DreamerV2(load(DreamerV2Config, options, "workflow"), spec)
    seen = agent.report(batch)
    frames, height, width, _ = seen.films["openloop/image"].shape
    assert frames == 18
    assert height > 3 * 128  # enlarged, with a line of words above
    assert width > 2 * 128
    assert (seen.curves["openloop/reward"].truth == 1).all()
    assert float(seen.metrics["openloop/reward_h4"]) < 10


def test_pictures_become_a_film_of_truth_dream_and_error(tmp_path):
    options = [
        "+experiment=dreamer_pixels",
        *TINY,
        "workflow.encoder.mults=[1, 2]",
        "workflow.decoder.mults=[1, 2]",
    ]
    loop = open_loop(tmp_path / "a", *options)
    assert loop.run() == "finished"
    (path,) = (tmp_path / "a" / "report").glob("openloop_image_*.mp4")
    with av.open(str(path)) as file:
        frame = next(file.decode(video=0)).to_ndarray(format="rgb24")
    tile = 96  # three rows, six sequences, of square pictures, and words above and beside them
    assert 3 * tile < frame.shape[0] < 3.3 * tile
    assert 6 * tile < frame.shape[1] < 6.7 * tile


def test_looking_does_not_change_the_training(tmp_path):
    weights = []
    for every in (40, 0):
        options = ["+experiment=dreamer_cartpole", *TINY, f"report.every_frames={every}"]
        loop = open_loop(tmp_path / str(every), *options)
        loop.run()
        weights.append(torch.cat([p.flatten() for p in loop.workflow.parameters()]))
    assert torch.equal(*weights)


def test_borders_are_green_then_red_and_black_follows():
    truth = np.full((2, 4, 8, 8, 3), 255, np.uint8)
    frames = film(truth, np.zeros((2, 4, 8, 8, 3)), context=2)
    assert len(frames) == 4 + 10
    small = frames[:, -3 * 96 :, -2 * 96 :][:, ::12, ::12]  # without the words
    assert (small[1, 0, 0] == CONTEXT).all()
    assert (small[2, 0, 0] == IMAGINED).all()
    assert small[0, 4, 4, 0] == 255  # truth
    assert small[0, 12, 4, 0] == 0  # dream
    assert small[0, 20, 4, 0] == 0  # error: grey if there is none, black if the dream is too dark
    assert not frames[4:].any()
    words = frames[:4, : -3 * 96]
    assert (words[0] != words[1]).any()  # each step says which it is
    assert (frames[:4, :, : -2 * 96] > 200).any()  # the rows are named


def test_a_step_says_whether_the_model_sees_it():
    assert step_head(0, 16, 32)[0] == "step 1 of 32: context (the model sees it)"
    assert step_head(15, 16, 32)[1] == CONTEXT
    assert step_head(16, 16, 32) == ("step 17 of 32: imagined, 1 ahead", IMAGINED)


@pytest.mark.parametrize(
    ("env", "key", "num", "expected"),
    [
        (EnvConfig("CartPole-v1"), "state", 4, "cart position"),
        (EnvConfig("cartpole_swingup", suite="dmc"), "position", 3, "cart position"),
        (EnvConfig("cartpole_two_poles", suite="dmc"), "position", 5, "position[0]"),
        (EnvConfig("walker_walk", suite="dmc"), "velocity", 9, "velocity[0]"),
        (EnvConfig("CartPole-v1"), "reward", 1, "reward"),
        (EnvConfig("CartPole-v1", frame_stack=2), "state", 8, "state[0]"),
        (EnvConfig("own:Environment"), "state", 2, "state[0]"),
    ],
)
def test_entries_of_a_curve_are_called_by_their_names_where_they_are_known(env, key, num, expected):
    numbers = np.zeros((3, num))
    names = entries(f"openloop/{key}", Curves(numbers, numbers, context=1), entry_names(env))
    assert len(names) == num
    assert names[0] == expected


@pytest.mark.parametrize("name", [n for n in gym.registry if n in CLASSIC])
def test_there_are_as_many_names_as_entries(name):
    config = EnvConfig(name)
    space = gym.make(name).observation_space
    assert len(entry_names(config)["state"]) == space.shape[0]


def test_errors_of_a_known_model_and_after_a_reset_are_not_counted():
    torch.manual_seed(0)
    spec = Spec({"state": ArraySpec((3,))}, ArraySpec((), "int64", classes=2))
    agent = DreamerV3(load(DreamerV3Config, DreamerV3.tiny, "workflow"), spec)
    no = torch.zeros(2, 8, dtype=torch.bool)
    start = Latent(torch.zeros(2, 16), torch.zeros(2, 16))
    action = torch.zeros(2, 8, dtype=torch.int64)
    obs = {"state": torch.randn(2, 8, 3)}
    seq = Sequences(obs, action, torch.zeros(2, 8), no.clone(), no.clone(), start)
    loop = look(agent.model, seq, context=4)
    assert loop.obs["state"].shape == (2, 8, 3)
    assert float(loop.reward.abs().max()) == 0.0  # the reward head starts at exactly zero
    truth = {"state": loop.obs["state"].clone()}
    truth["state"][1, 6:] += 100.0  # wrong, but in the next episode
    first = no.clone()
    first[1, 6] = True
    seen = errors(agent.model, Sequences(truth, action, seq.reward, first, no, start), loop)
    assert float(seen["openloop/state_h4"]) == pytest.approx(0.0, abs=1e-10)
    assert float(seen["openloop/reward_h1"]) == 0.0


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"])
def test_observations_of_classic_control_can_be_painted(name):
    paint = painter(EnvConfig(name))
    assert paint is not None
    env = gym.make(name, render_mode="rgb_array")
    obs, _ = env.reset(seed=1)
    assert np.abs(paint(obs).astype(int) - env.render().astype(int)).mean() < 1.0
    curves = Curves(np.stack([obs] * 3), np.stack([obs] * 3), context=1)
    frames = painted(curves, paint)
    height, width = paint(obs).shape[:2]
    assert frames.shape[2] == 3 * width
    assert height < frames.shape[1] < 1.4 * height
    assert (frames[:, -height + 6 : -6, 6:width] == paint(obs)[6:-6, 6:]).all()
    assert painter(EnvConfig("LunarLander-v3")) is None
