"""Words and command lines of other programs are answered with what works here."""

from __future__ import annotations

import shlex
from copy import deepcopy
from typing import Any

import pytest

from dreamlab import build
from dreamlab.cli import main
from dreamlab.config import compose, dump, load_config
from dreamlab.config_files import choices, experiments_like
from dreamlab.core.errors import LabError, UnknownOptionError
from dreamlab.core.foreign_words import BY_NAME, WORDS, find
from dreamlab.foreign import assignments
from dreamlab.runs.options import flatten
from tests.helpers import some_of

EACH_WORKFLOW = (
    "ppo_cartpole", "imitation_pusht", "dreamer_dmc_proprio", "dqn_cartpole", "sac_pendulum",
    "td3_bc_pendulum", "iql_pendulum", "cal_ql_pendulum", "pa_rl_pendulum", "diffusion_rl_pendulum",
    "dreamer_v1_cartpole_swingup", "dreamer_v2_cartpole",
    "plan2explore_cartpole_swingup", "planet_cartpole_swingup", "r2_dreamer_pixels",
    "mpc_pendulum", "tdmpc2_walker", "tdmpc_pendulum", "tdmpc_square_pendulum",
    "world_models_cartpole", "random_cartpole",
)  # fmt: skip
OTHER_EXPERIMENTS = [e for e in choices("experiment") if e not in EACH_WORKFLOW]


@pytest.mark.parametrize("name", some_of([*EACH_WORKFLOW, *OTHER_EXPERIMENTS], 4))
def test_whatever_the_table_suggests_is_an_option_of_the_experiment(name: str) -> None:
    node = compose([name])
    flat = flatten(dump(load_config(node)))
    known = {part for key in flat for part in beginnings(key)} | {"env"}
    for word in WORDS:
        answer = find(word.names[0], word.example, flat)
        assert answer is not None
        missing = (
            set(answer.answer) - known - {"env.normalize_obs.clip", "env.normalize_reward.clip"}
        )
        assert not missing, (name, word.names[0], missing)
        load_config(with_options(node, answer.answer))  # of a kind that the option takes


def beginnings(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def with_options(node: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return a composed configuration with options set as a command line would."""
    out = deepcopy(node)
    for key, value in options.items():
        *path, last = key.split(".") if key != "env" else ["env", "id"]
        inside: Any = out
        for part in path:
            if isinstance(inside, list):
                inside = inside[int(part)]
                continue
            if not isinstance(inside.get(part), dict | list):
                named = inside.get(part)
                inside[part] = {"_target_": named} if isinstance(named, str) else {}
            inside = inside[part]
        inside[last] = value
    return out


def test_no_name_stands_for_two_things() -> None:
    names = [name for word in WORDS for name in word.names]
    assert len(names) == len(set(names))


SAID = [
    ("ppo_cartpole", "learning_rate=1e-3", "workflow.optimizer.lr=1e-3"),
    ("ppo_cartpole", "workflow.learning_rate=1e-3", "workflow.optimizer.lr=1e-3"),
    ("dreamer_v2_cartpole", "lr=1e-3", "workflow.model_optimizer.lr=1e-3"),
    ("ppo_cartpole", "n_steps=64", "buffers.rollout.length=64 training.phases.0.collect_ticks=64"),
    ("ppo_cartpole", "batch_size=128", "workflow.minibatch=128"),
    ("sac_pendulum", "batch_size=128", "buffers.replay.batch=128"),
    ("sac_pendulum", "gradient_steps=2", "training.phases.1.train_ratio=1024.0"),
    ("sac_pendulum", "train_freq=2", "training.phases.1.train_ratio=256.0"),
    ("sac_pendulum", "learning_starts=500", "training.phases.0.duration_steps=500"),
    ("dreamer_cartpole", "gamma=0.99", "workflow.horizon=100"),
    ("dreamer_dmc_proprio", "batch_length=64", "buffers.replay.length=65"),
    ("dreamer_dmc_proprio", "run.train_ratio=32", "training.phases.0.train_ratio=32"),
    ("dreamer_dmc_proprio", "task=dmc_walker_run", "env.id=walker_run"),
    ("dreamer_dmc_proprio", "task=atari_pong", "env=atari env.id=pong"),
    ("tdmpc2_walker", "task=dog-run", "env.id=dog_run"),
    ("imitation_pusht", "total_timesteps=5e3", "training.phases.0.duration_updates=5e3"),
    ("dqn_cartpole", "exploration_fraction=0.1", "workflow.epsilon_decisions=5000"),
    ("sac_pendulum", "wandb.enable=true", "log.wandb=true"),
    ("ppo_cartpole", "policy_kwargs.net_arch=[32,32]", "'workflow.network.hidden=[32,32]'"),
]  # fmt: skip


@pytest.mark.parametrize(("experiment", "typed", "ours"), some_of(SAID, 5))
def test_an_option_of_another_program_is_answered_with_the_line_to_type(
    experiment: str, typed: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = answer_to(["train", experiment, typed], capsys)
    assert command == f"dreamlab train {experiment} {ours}"
    load_config(compose(shlex.split(command)[2:]))


def test_all_of_them_are_answered_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "ppo_cartpole", "learning_rate=1e-3", "seed=3", "total_timesteps=1e5"]
    assert answer_to([*words, "--cfg", "job"], capsys) == (
        "dreamlab train ppo_cartpole workflow.optimizer.lr=1e-3 seed=3 training.total_frames=1e5 "
        "--cfg job"
    )


def answer_to(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the command that an error message suggests."""
    assert main(arguments) == 2
    said = capsys.readouterr().err
    lines = [line.strip() for line in said.splitlines() if line.startswith("  dreamlab ")]
    assert len(lines) == 1, said
    return lines[0]


LINES = [
    ("train --configs dmc_proprio size12m --logdir D --task dmc_walker_walk",
     "dreamlab train dreamer_dmc_proprio workflow.size=12m run.dir=D env.id=walker_walk"),
    ("main.py --logdir L/{timestamp} --configs crafter --run.train_ratio 32",
     "dreamlab train dreamer_crafter training.phases.0.train_ratio=32"),
    ("--logdir L --configs atari --task atari_pong",
     "dreamlab train dreamer_atari run.dir=L env.id=pong"),
    ("dreamer.py --configs debug --task dmc_walker_walk --logdir ./L",
     "dreamlab train dreamer_dmc_vision +preset=debug env.id=walker_walk run.dir=./L"),
    ("train --config configs/experiments/ppo_cartpole.yaml --seed 1,2,3",
     "dreamlab train ppo_cartpole seed=1,2,3"),
    ("train --config configs/experiments/ppo_cartpole.yaml --debug --total_timesteps 1000",
     "dreamlab train ppo_cartpole +preset=debug training.total_frames=1000"),
    ("train --algo ppo --env CartPole-v1", "dreamlab train ppo_cartpole env=CartPole-v1"),
    ("train --algo sac --env MountainCarContinuous-v0 -n 50000 --hyperparams gamma:0.9 tau:0.01",
     "dreamlab train sac_pendulum env=MountainCarContinuous-v0 training.total_frames=50000 "
     "workflow.gamma=0.9 workflow.tau=0.01"),
    ("lerobot-train --policy.type=diffusion --dataset.repo_id=lerobot/pusht --batch_size=8 "
     "--steps=1000 --output_dir=O --policy.device=cpu --wandb.enable=false",
     "dreamlab train imitation_pusht_pixels buffers.demos.path=data/pusht buffers.demos.batch=8 "
     "training.phases.0.duration_updates=1000 run.dir=O device=cpu log.wandb=false"),
    ("train --algo=tdmpc2 --env=Pendulum-v1 --seed=42 --batch_size=128 --max_steps=32500",
     "dreamlab train tdmpc2_pendulum env=Pendulum-v1 seed=42 buffers.replay.batch=128 "
     "training.total_frames=32500"),
    ("cleanrl/ppo.py --env-id CartPole-v1 --num-envs 4 --anneal-lr false",
     "dreamlab train ppo_cartpole env=CartPole-v1 env.num_envs=4 "
     "workflow.optimizer.schedule=constant"),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours"), some_of(LINES, 6))
def test_a_command_line_of_another_program_is_answered_with_one_that_composes(
    theirs: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = answer_to(theirs.split(), capsys)
    assert command == ours
    words = [w for w in shlex.split(command)[2:] if not w.startswith("seed=")]
    build.check(load_config(compose(words)))


OTHERS = [
    ("train --resume experiments/first/", "dreamlab resume experiments/first"),
    ("sweep --config my_sweep.yaml", "dreamlab sweep my_sweep.yaml"),
    ("enjoy --algo ppo -f runs/first", "dreamlab eval runs/first"),
    ("evaluate runs/first", "dreamlab eval runs/first"),
    ("ls", "dreamlab list"),
]


@pytest.mark.parametrize(("theirs", "ours"), OTHERS)
def test_verbs_of_other_programs_have_an_answer(
    theirs: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer_to(theirs.split(), capsys) == ours


def test_what_has_no_counterpart_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--algo", "ppo", "--num_devices", "4"]) == 2
    assert "without a counterpart here: --num_devices" in capsys.readouterr().err
    assert main(["train", "ppo_cartpole", "use_sde=true"]) == 2
    assert "use_sde: no option says that here" in capsys.readouterr().err
    assert main(["train", "--algo", "a2c"]) == 2
    assert "there is no 'a2c' here: cal_ql, " in capsys.readouterr().err


def test_an_option_in_the_wrong_place_is_sent_to_the_right_one() -> None:
    with pytest.raises(UnknownOptionError, match=r"Did you mean 'workflow\.target_kl'"):
        load_config(compose(["ppo_cartpole", "target_kl=0.1"]))


def test_from_python_the_same_is_said() -> None:
    with pytest.raises(UnknownOptionError, match=r"here it is env\.num_envs") as caught:
        load_config(compose(["ppo_cartpole", "n_envs=4"]))
    assert caught.value.instead == {"env.num_envs": 4}
    assert assignments(caught.value.instead) == ["env.num_envs=4"]


def test_a_part_of_a_name_finds_the_experiments() -> None:
    assert experiments_like("ppo")[:2] == ["ppo_acrobot", "ppo_cartpole"]
    assert "sac_pendulum" in experiments_like("Pendulum-v1")
    with pytest.raises(LabError, match="Did you mean 'ppo_acrobot', "):
        compose(["ppo"])


def test_the_answer_survives_a_value_of_the_wrong_kind() -> None:
    flat = flatten(dump(load_config(compose(["sac_pendulum"]))))
    found = find("gradient_steps", "many", flat)
    assert found is not None
    assert list(found.answer) == ["training.phases.1.train_ratio"]
    assert BY_NAME["gamma"].answer(0.9, {}) == {}
