"""The command line as a user meets it: right commands, wrong commands, and what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dreamlab.accel import dispatch
from dreamlab.cli import main
from dreamlab.engine.evaluator import Evaluator

ROOT = Path(__file__).parents[2]
QUICK = (
    "+experiment=ppo_cartpole", "tiny=true", "training.total_frames=300", "eval.episodes=2",
    "eval.every_frames=0", "eval.video=false", "log.every_frames=100", "device=cpu",
)  # fmt: skip


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_train_then_eval_then_extend(tmp_path, capsys):
    folder = str(tmp_path / "r")
    code, out, _ = run(capsys, "train", *QUICK, f"run.dir={folder}")
    assert code == 0
    assert f"finished: {folder}" in out
    told = json.loads(run(capsys, "eval", folder, "--episodes", "2", "--json")[1])
    assert told["eval/return"] == sum(told["returns"]) / 2
    code, out, _ = run(capsys, "eval", folder, "--episodes", "3")
    assert code == 0
    assert "eval/episodes      3" in out
    assert len(json.loads((tmp_path / "r" / "report" / "eval.json").read_text())["returns"]) == 3
    code, out, _ = run(capsys, "resume", folder, "training.total_frames=500")
    assert code == 0
    assert "resuming in" in out
    assert (tmp_path / "r" / "report" / "learning_curve.png").stat().st_size > 5_000
    lines = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["env_frames"] >= 500


def test_eval_computes_as_the_run_did(tmp_path, capsys, monkeypatch):
    modes: list[bool] = []
    seen: list[bool] = []
    play = Evaluator.run

    def watched(*given, **options):
        seen.append(dispatch.Forms.reference)
        return play(*given, **options)

    monkeypatch.setattr(Evaluator, "run", watched)
    for accel in ("off", "auto", "off"):
        folder = str(tmp_path / f"{accel}{len(modes)}")
        assert run(capsys, "train", *QUICK, f"accel={accel}", f"run.dir={folder}")[0] == 0
        dispatch.set_reference(accel == "auto")  # as a process may be that has done other things
        assert run(capsys, "eval", folder, "--episodes", "1")[0] == 0
        modes.append(seen[-1])
        assert dispatch.Forms.reference == (accel == "auto")  # left as it was
    dispatch.set_reference(False)
    assert modes == [True, False, True]


def test_a_run_gets_a_folder_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert run(capsys, "train", *QUICK)[0] == 0
    folders = [p for p in (tmp_path / "experiments").iterdir() if p.is_dir()]
    assert len(folders) == 2
    assert all(f.name.startswith("ppo_cartpole_") for f in folders)


def test_several_seeds_run_one_after_another(tmp_path, capsys):
    assert run(capsys, "train", *QUICK, "seed=1,2,3", f"run.dir={tmp_path}/r")[0] == 0
    seeds = {}
    for seed in (1, 2, 3):
        folder = tmp_path / "r" / f"seed_{seed}"
        assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == seed
        seeds[seed] = (folder / "metrics.jsonl").read_text()
    assert len(set(seeds.values())) == 3


def test_cfg_job_prints_the_whole_configuration_and_trains_nothing(tmp_path, capsys):
    code, out, _ = run(
        capsys,
        "train",
        *QUICK,
        f"run.dir={tmp_path}/r",
        "workflow.optimizer.lr=0.5",
        "--cfg",
        "job",
    )
    assert code == 0
    node = yaml.safe_load(out)
    assert node["workflow"]["optimizer"]["lr"] == 0.5
    assert node["workflow"]["optimizer"]["clip"] == 0.5  # a default that no YAML file mentions
    assert not (tmp_path / "r").exists()


def test_a_config_file_by_path_works_like_one_by_name(tmp_path, capsys):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        (ROOT / "configs/experiment/ppo_cartpole.yaml")
        .read_text()
        .replace("gamma: 0.98", "gamma: 0.5")
    )
    for argument in (str(mine), f"+experiment={mine}"):
        code, out, _ = run(capsys, "train", argument, "--cfg", "job")
        assert code == 0
        assert yaml.safe_load(out)["workflow"]["gamma"] == 0.5


def test_an_environment_by_id_replaces_the_experiments_one(capsys):
    _, out, _ = run(capsys, "train", "+experiment=ppo_cartpole", "env=Acrobot-v1", "--cfg", "job")
    assert yaml.safe_load(out)["env"]["id"] == "Acrobot-v1"


MISTAKES = [
    (
        ["+experiment=ppo_cartpoll"],
        "there is no experiment 'ppo_cartpoll'. Did you mean 'ppo_cartpole'?",
    ),
    (
        [*QUICK, "workflow.gama=1"],
        "workflow.gama: there is no PPOConfig option 'gama'. Did you mean 'gamma'?",
    ),
    ([*QUICK, "workflow.network.hiden=[8]"], "Did you mean 'hidden'?"),
    ([*QUICK, "workflow.network=rn"], "there is no part 'rn'. Did you mean 'rnn'?"),
    ([*QUICK, "trainin.total_frames=1"], "Did you mean 'training'?"),
    ([*QUICK, "training.total_frame=1"], "Did you mean 'total_frames'?"),
    (
        [*QUICK, "env.num_env=1"],
        "env.num_env: there is no EnvConfig option 'num_env'. Did you mean 'num_envs'?",
    ),
    ([*QUICK, "buffers.rollout.lenght=1"], "Did you mean 'length'?"),
    (
        [*QUICK, "workflow._target_=dreamlab.workflows.ppoo.PPO"],
        "Did you mean 'dreamlab.workflows.ppo'?",
    ),
    ([*QUICK, "workflow._target_=dreamlab.workflows.ppo.PP"], "Did you mean 'PPO'?"),
    (["+workflow={_target_: dreamlab.nn.mlp.MLP}"], "is not a Workflow"),
    ([*QUICK, "workflow.optimizer.lr=fast"], "workflow.optimizer.lr: expected float, got 'fast'"),
    ([*QUICK, "device=gpu"], "there is no device 'gpu'. Did you mean 'cuda'?"),
    ([*QUICK, "log.terminal=lively"], "there is no choice 'lively'. Did you mean 'live'?"),
    ([*QUICK, "env=CartPoll-v1"], "CartPole"),
    ([*QUICK, "env.suite=gymm"], "there is no suite 'gymm'. Did you mean 'gym'?"),
    ([*QUICK, "schema=7"], "use the newer dreamlab"),
    (["training.total_frames=5"], "use +experiment=NAME"),
    (["nothere.yaml"], "no such file:"),
    ([*QUICK, "seed=["], "cannot read the argument"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_a_mistake_is_one_message_before_anything_is_written(arguments, message, tmp_path, capsys):
    code, _, err = run(capsys, "train", *arguments, f"run.dir={tmp_path}/r")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "r").exists()


def test_a_misspelt_hook_in_a_yaml_file_is_found(tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    text = (ROOT / "configs/experiment/ppo_cartpole.yaml").read_text()
    bad.write_text(text.replace("[collect, update_controller]", "[collect, update_contoller]"))
    code, _, err = run(capsys, "train", str(bad), f"run.dir={tmp_path}/r")
    assert code == 2
    assert "phase 'learn' of PPO: there is no hook 'update_contoller'" in err
    assert "Did you mean 'update_controller'?" in err
    assert not (tmp_path / "r").exists()


def test_a_folder_is_not_continued_with_other_options(tmp_path, capsys):
    run(capsys, "train", *QUICK, f"run.dir={tmp_path}/r")
    code, _, err = run(
        capsys, "train", *QUICK, f"run.dir={tmp_path}/r", "workflow.optimizer.lr=0.1"
    )
    assert code == 2
    assert "contains a run with another workflow.optimizer.lr: 0.001, not 0.1" in err


def test_how_a_run_is_saved_may_change_and_its_length_is_not_forgotten(tmp_path, capsys):
    folder = tmp_path / "r"
    run(capsys, "train", *QUICK, f"run.dir={folder}")
    run(capsys, "resume", str(folder), "training.total_frames=400")
    shorter = [a for a in QUICK if "total_frames" not in a]
    assert run(capsys, "train", *shorter, f"run.dir={folder}", "checkpoint.every_frames=77")[0] == 0
    node = yaml.safe_load((folder / "config.yaml").read_text())
    assert node["checkpoint"]["every_frames"] == 77
    assert node["training"]["total_frames"] == 400


def test_a_class_in_the_working_folder_can_be_a_target(tmp_path, capsys, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "class Wide(nn.Module):\n"
        "    def __init__(self, in_dim, width=8):\n"
        "        super().__init__()\n"
        "        self.net, self.out_dim = nn.Linear(in_dim, width), width\n"
        "    def forward(self, x, state=(), is_first=None):\n"
        "        return self.net(x).relu(), state\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = [*QUICK, "workflow.network._target_=my_nets.Wide", "workflow.network.width=16"]
    assert run(capsys, "train", *arguments, f"run.dir={tmp_path}/r")[0] == 0


def test_an_older_schema_is_migrated(tmp_path, capsys):
    run(capsys, "train", *QUICK, f"run.dir={tmp_path}/r")
    path = tmp_path / "r" / "config.yaml"
    node = yaml.safe_load(path.read_text())
    node["experiment"] = {"name": node.pop("name"), "seed": node.pop("seed")}
    node["training"]["total_timesteps"] = node["training"].pop("total_frames")
    for phase in node["training"]["phases"]:
        phase["replay_ratio"] = phase.pop("train_ratio")
    node["schema"] = 0
    path.write_text(yaml.safe_dump(node))
    assert run(capsys, "eval", str(tmp_path / "r"), "--episodes", "1")[0] == 0


def test_plan_says_what_a_run_costs(capsys):
    code, out, _ = run(capsys, "plan", "+experiment=dqn_cartpole", "device=cpu")
    assert code == 0
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if line.strip())
    assert rows["parameters"].replace(",", "").isdigit()
    assert "GiB when full" in rows["buffer"]
    assert {"disk", "expected"} <= rows.keys()


def test_check_accepts_a_good_environment_and_refuses_a_bad_one(tmp_path, capsys, monkeypatch):
    assert run(capsys, "check", "env=CartPole-v1")[0] == 0
    (tmp_path / "badenv.py").write_text(
        "import gymnasium as gym, numpy as np\n"
        "class Bad(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)\n"
        "    action_space = gym.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None): return np.zeros(4, np.float32), {}\n"
        "    def step(self, action): return np.zeros(4, np.float32), 0.0, False, False, {}\n"
    )
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "check", "env=badenv:Bad")
    assert code == 1
    assert "error" in out


def test_no_arguments_list_what_there_is(capsys):
    assert "ppo_cartpole" in run(capsys, "train")[1]
    assert "Usage: dreamlab" in run(capsys)[1]
    assert "Did you mean 'train'?" in run(capsys, "trian")[2]


def test_the_script_takes_the_same_arguments(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/train.py", *QUICK, f"run.dir={tmp_path}/r"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r" / "metrics.jsonl").exists()


@pytest.mark.parametrize("network", ["mlp", "rnn", "transformer"])
def test_networks_are_swapped_from_the_command_line(network, tmp_path, capsys):
    arguments = ["train", *QUICK, f"workflow.network={network}", f"run.dir={tmp_path}/r"]
    assert run(capsys, *arguments)[0] == 0


@pytest.mark.parametrize("encoder", ["cnn", "impala", "patches"])
def test_encoders_are_swapped_from_the_command_line(encoder, tmp_path, capsys):
    arguments = ["train", *QUICK, f"workflow.encoder.image={encoder}", "env=dummy", "env.id=pixels"]
    assert run(capsys, *arguments, f"run.dir={tmp_path}/r")[0] == 0


@pytest.mark.slow
def test_the_demo_ends_with_a_summary(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "demo", "training.total_frames=800", "log.terminal=plain")
    assert code == 0
    for word in ("return before training", "return after training", "learning curve", "next steps"):
        assert word in out
    folder = next(p for p in (tmp_path / "experiments").iterdir() if p.is_dir())
    assert list((folder / "videos").glob("*.mp4"))
    assert (folder / "report" / "learning_curve.png").exists()
