"""An evaluation ends: by itself, by a limit, or when the user says so, and then it is made anew."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamlab.cli import main
from dreamlab.core.errors import ConfigError
from dreamlab.core.rng import derive
from dreamlab.core.types import Mode
from dreamlab.engine.evaluator import EvalConfig, Evaluator
from dreamlab.envs.vector import EnvConfig, Envs
from tests.engine.test_collector import Adder
from tests.helpers import metrics, open_loop

SMALL = (
    "+experiment=ppo_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=200",
    "log.every_frames=40", "eval.episodes=2", "eval.num_envs=2", "eval.every_frames=60",
    "eval.video=false", "device=cpu", "log.terminal=off",
)  # fmt: skip
FIRST = derive(EvalConfig().seed, 0, 0) % 2**31  # the seed that every evaluation begins with


class Endless(gym.Env[Any, Any]):
    """Never ends; gives 1 per step and always succeeds; may press Ctrl-C in one of its steps."""

    observation_space = spaces.Box(-1, 1, (4,))
    action_space = spaces.Discrete(2)

    def __init__(self, press_at: int = 0) -> None:
        self.press_at, self.steps = press_at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == self.press_at:
            os.kill(os.getpid(), signal.SIGINT)
        return np.zeros(4, np.float32), 1.0, False, False, {"success": True}


class Presses(Endless):
    """Ends after five steps; presses Ctrl-C within the evaluation that a file counts down to."""

    def __init__(self, countdown: str) -> None:
        self.countdown, self.pressed = Path(countdown), False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        if seed == FIRST:
            left = int(self.countdown.read_text())
            self.countdown.write_text(str(left - 1))
            if left == 0:
                self.pressed = True
                os.kill(os.getpid(), signal.SIGINT)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        assert not self.pressed, "the evaluation goes on"
        self.count += 1
        obs = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return obs, float(obs[int(action)]), False, self.count >= 5, {}


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def evaluated(env: EnvConfig, **options: Any) -> Any:
    def make(num: int, seed: int) -> Envs:
        return Envs(EnvConfig(**{**vars(env), "num_envs": num}), seed)

    spec = make(1, 0).spec
    return Evaluator(EvalConfig(**options), make).run(Adder(None, spec), None)


def test_an_episode_without_an_end_is_cut_and_counted():
    env = EnvConfig("counting", "dummy", {"length": 10**9})
    result = evaluated(env, episodes=5, num_envs=2, max_steps=7)
    assert result.lengths == [7] * 5
    assert result.metrics()["eval/cut"] == 5
    assert result.metrics()["eval/episodes"] == 5


def test_a_limit_that_is_the_environments_own_cuts_nothing():
    result = evaluated(EnvConfig("counting", "dummy", {"length": 7}), episodes=4, max_steps=7)
    assert result.lengths == [7] * 4
    assert "eval/cut" not in result.metrics()
    whole = evaluated(EnvConfig("counting", "dummy", {"length": 7}), episodes=4, max_steps=0)
    assert whole.metrics() == result.metrics()


def test_a_cut_episode_is_followed_by_the_next_one():
    """The episodes are those of the same environments with a time limit of their own."""
    endless = EnvConfig("identity", "dummy", {"length": 10**9, "continuous": True})
    limited = EnvConfig("identity", "dummy", {"length": 6, "continuous": True})
    mine = evaluated(endless, episodes=6, num_envs=2, max_steps=6)
    own = evaluated(limited, episodes=6, num_envs=2)
    assert mine.returns == own.returns
    assert len(set(mine.returns)) == 6


def test_what_a_cut_episode_had_to_report_counts():
    envs = Envs(EnvConfig("tests.engine.test_evaluator:Endless"), 0)
    envs.reset()
    step = envs.step(np.zeros(1, np.int64))
    envs.cut(np.array([True]))
    assert envs.pop_finals() == [{"success": 1.0}]
    assert step.is_last.all()
    assert envs.step(np.zeros(1, np.int64)).is_first.all()
    assert not envs.step(np.zeros(1, np.int64)).is_first.any()


def test_a_run_without_a_time_limit_comes_to_its_end_and_says_so_once(tmp_path):
    options = (*SMALL, "env.id=tests.engine.test_evaluator:Endless", "eval.max_steps=20")
    assert open_loop(tmp_path / "r", *options).run() == "finished"
    last = metrics(tmp_path / "r")[-1]
    assert (last["eval/cut"], last["eval/return"], last["eval/success"]) == (2, 20, 1)
    said = [e["text"] for e in events(tmp_path / "r") if e["event"] == "message"]
    assert len(said) == 1
    assert "2 of 2 evaluation episodes" in said[0]
    assert "eval.max_steps" in said[0]


def test_the_default_limit_is_that_of_atari():
    assert EvalConfig().max_steps == 108_000 / 4


PHASES = (
    "training.phases=[{name: train, duration_steps: 100, collect_ticks: 8, buffer: rollout, "
    "workflow_hooks: [collect, update_controller]}, {name: exam, type: eval_only, "
    "duration_cycles: 2, workflow_hooks: [evaluate]}, {name: again, duration_steps: 100, "
    "collect_ticks: 8, buffer: rollout, workflow_hooks: [collect, update_controller]}]"
)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("plan", ["every", "phase"])
def test_ctrl_c_inside_an_evaluation_saves_and_the_evaluation_is_made_anew(plan, which, tmp_path):
    count = tmp_path / "countdown"
    rest = () if plan == "every" else (PHASES,)
    options = (
        *(o for o in SMALL if plan == "every" or "total_frames" not in o), *rest,
        "env.id=tests.engine.test_evaluator:Presses", f"env.options={{countdown: {count}}}",
        "checkpoint.every_frames=40",
    )  # fmt: skip
    count.write_text("-1")
    assert open_loop(tmp_path / "whole", *options).run() == "finished"
    total = -1 - int(count.read_text())
    assert total > which
    count.write_text(str(which))
    assert open_loop(tmp_path / "cut", *options).run() == "interrupted"
    assert json.loads((tmp_path / "cut" / "manifest.json").read_text())["status"] == "interrupted"
    assert count.read_text() == "-1"
    assert open_loop(tmp_path / "cut", *options).run() == "finished"
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    finals = [
        json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("cut", "whole")
    ]
    assert finals[0]["final_eval"] == finals[1]["final_eval"]


def test_the_last_evaluation_can_be_interrupted_too(tmp_path):
    count = tmp_path / "countdown"
    options = (
        *(o for o in SMALL if "eval.every" not in o), "eval.every_frames=0",
        "env.id=tests.engine.test_evaluator:Presses", f"env.options={{countdown: {count}}}",
    )  # fmt: skip
    count.write_text("-1")
    open_loop(tmp_path / "whole", *options).run()
    count.write_text("0")
    assert open_loop(tmp_path / "cut", *options).run() == "interrupted"
    again = open_loop(tmp_path / "cut", *options)
    assert again.run() == "finished"
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert open_loop(tmp_path / "cut", *options).run() == "finished"
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_an_evaluation_that_would_never_end_heeds_the_first_ctrl_c(tmp_path):
    options = (
        *SMALL, "eval.max_steps=0", "env.id=tests.engine.test_evaluator:Endless",
        "env.options={press_at: 300}", "eval.num_envs=1",
    )  # fmt: skip
    loop = open_loop(tmp_path / "r", *options)
    assert loop.run() == "interrupted"
    assert loop.workflow.training
    assert list((tmp_path / "r" / "checkpoints").glob("[0-9]*"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval") / "run"
    open_loop(folder, *SMALL).run()
    return folder


@pytest.mark.parametrize("wanted", [[], ["--json"]])
def test_what_was_measured_is_printed_though_the_disk_refuses_it(trained, wanted, capsys):
    report = trained / "report"
    kept = report.rename(trained / "kept") if report.is_dir() else None
    report.write_text("a file where the folder should be")
    try:
        assert main(["eval", str(trained), "--episodes", "2", *wanted]) == 0
    finally:
        report.unlink()
        if kept:
            kept.rename(report)
    said = capsys.readouterr()
    assert "eval/return" in said.out
    assert "eval: the result could not be written" in said.err


def test_what_was_asked_for_and_cannot_be_written_is_an_exit_code(trained, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "out")
    assert main(["eval", str(trained), "--episodes", "2", "--out", out]) == 2
    said = capsys.readouterr()
    assert "eval/return" in said.out
    assert "eval: the result could not be written" in said.err


FULL_DISK = """
import resource, sys
from dreamlab.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


def test_a_full_disk_costs_the_video_and_not_the_result(trained, tmp_path):
    command = [sys.executable, "-c", FULL_DISK, "300", "eval", str(trained), "--episodes", "2"]
    done = subprocess.run(
        [*command, "--video", "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "eval/return" in done.stdout
    assert "eval: the video could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix == ".mp4"]


def test_ctrl_c_ends_the_verb_eval(trained, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    text = (copy / "config.yaml").read_text().replace("max_steps: 27000", "max_steps: 0")
    text = text.replace("CartPole-v1", "tests.engine.test_evaluator:Endless")
    (copy / "config.yaml").write_text(text.replace("options: {}", "options: {press_at: 100}"))
    assert main(["eval", str(copy), "--episodes", "1"]) == 130
    said = capsys.readouterr()
    assert "interrupted" in said.err
    assert "eval/return" not in said.out


class Expecting(Adder):
    """Expects a return of 3 at a discount of a half; without its planner it gets half of that."""

    plans = True

    def decide(self, obs: Any, is_first: Any, state: Any, mode: Any) -> Any:
        decision = super().decide(obs, is_first, state, mode)
        how = 0.5 if mode is Mode.POLICY else 1.0
        return replace(decision, action=torch.full_like(decision.action, how))

    def expected_return(self, obs: Any) -> Any:
        num = len(next(iter(obs.values())))
        return torch.full((num,), 3.0), torch.full((num,), 0.5)


class Ones(gym.Env[Any, Any]):
    """Gives what the action says in each of three steps."""

    observation_space = spaces.Box(-1, 1, (4,))
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(4, np.float32), float(action[0]), False, self.steps == 3, {}


def test_what_was_expected_is_compared_with_the_discounted_return():
    def make(num: int, seed: int) -> Envs:
        return Envs(EnvConfig(f"{__name__}:Ones", num_envs=num), seed)

    envs = make(1, 0)
    agent = Expecting(None, envs.spec)
    envs.close()
    result = Evaluator(EvalConfig(episodes=4, num_envs=2), make).run(agent, None)
    assert result.excess == [3.0 - 1.75] * 4
    assert result.metrics()["eval/overestimation"] == 1.25
    assert not [k for k in result.metrics() if k.startswith("eval/policy_")]
    both = Evaluator(EvalConfig(episodes=4, num_envs=2, policy_alone=True), make).run(agent, None)
    assert both.metrics()["eval/overestimation"] == 1.25
    assert both.metrics()["eval/policy_return"] == 1.5
    assert both.metrics()["eval/policy_overestimation"] == 3.0 - 0.875


def test_the_policy_alone_is_measured_only_where_there_is_a_planner(tmp_path):
    with pytest.raises(ConfigError, match=r"eval\.policy_alone.*PPO does not plan"):
        open_loop(tmp_path, *SMALL, "eval.policy_alone=true")
