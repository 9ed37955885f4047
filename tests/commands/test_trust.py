"""Verify, debug and cleanup as a user meets them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dreamlab.cli import main
from dreamlab.runs import legs, verify
from dreamlab.runs.run import FolderLock
from tests.helpers import open_loop, run_for, some_of

QUICK = (
    "tiny=true", "env.num_envs=2", "training.total_frames=400", "log.every_frames=100",
    "eval.episodes=1", "eval.every_frames=0", "eval.video=false", "device=cpu",
    "checkpoint.every_frames=150", "log.terminal=off",
)  # fmt: skip


def run(capsys, *arguments):
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Runs of two algorithms, trained once."""
    root = tmp_path_factory.mktemp("original")
    for name in ("ppo_cartpole", "dqn_cartpole"):
        assert main(["train", f"+experiment={name}", *QUICK, f"run.dir={root / name}"]) == 0
    return root


@pytest.fixture
def copy(original, tmp_path):
    """A copy of the PPO run that a test may spoil."""
    return Path(shutil.copytree(original / "ppo_cartpole", tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", some_of(["dqn_cartpole", "ppo_cartpole"]))
def test_a_run_is_the_same_when_run_again_and_is_left_as_it_was(name, original, capsys):
    before = contents(original / name)
    code, out, err = run(capsys, "verify", original / name)
    assert code == 0, out + err
    links = (original / name / "chain.jsonl").read_text().splitlines()
    assert f"same: transitions, losses and weights at {len(links)} points" in out
    assert contents(original / name) == before


@pytest.mark.slow
def test_as_many_frames_as_asked_for(original, capsys):
    folder = original / "ppo_cartpole"
    recorded = [x["env_frames"] for x in verify.read_chain(folder)]
    for frames, places in ((1, 1), (recorded[1] - 1, 2)):
        code, out, _ = run(capsys, "verify", folder, "--frames", frames)
        assert code == 0
        assert f"at {places} point" in out
        assert f"up to env frame {recorded[places - 1]:,}" in out


@pytest.mark.parametrize("name", some_of(["dqn_cartpole", "ppo_cartpole"]))
def test_a_run_is_the_same_from_a_checkpoint(name, original, capsys):
    folder = original / name
    first = min(p.name for p in (folder / "checkpoints").iterdir() if p.name.isdigit())
    code, out, err = run(capsys, "verify", folder, "--from", first)
    assert code == 0, out + err
    assert f"running env frames {int(first):,} to" in out


def change(folder: Path, number: int, kind: str) -> None:
    """Change one digest of a chain."""
    lines = [json.loads(line) for line in (folder / "chain.jsonl").read_text().splitlines()]
    lines[number][kind] = "0" * 8
    (folder / "chain.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


@pytest.mark.parametrize("kind", some_of(["losses", "transitions", "weights"]))
def test_the_first_divergence_is_named(kind, copy, capsys):
    change(copy, 1, kind)
    links = [json.loads(line) for line in (copy / "chain.jsonl").read_text().splitlines()]
    code, out, _ = run(capsys, "verify", copy)
    assert code == 1
    assert f"diverged: {kind}, after env frame {links[0]['env_frames']}" in out
    assert f"by env frame {links[1]['env_frames']} (update {links[1]['updates']})" in out
    assert f"{kind}  expected 00000000  found " in out


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A run that ended, was extended, was interrupted, and was extended once more."""
    folder = tmp_path_factory.mktemp("extended") / "run"
    options = (
        "+experiment=ppo_cartpole",
        *QUICK,
        "workflow.optimizer.schedule=linear",
        "checkpoint.keep=9",
    )
    for frames, actions in ((200, None), (450, 3), (450, 1), (600, None)):
        run_for(open_loop(folder, *options, f"training.total_frames={frames}"), actions)
    return folder


def test_an_extended_run_is_the_same_when_run_again(extended, capsys):
    events = [json.loads(x) for x in (extended / "events.jsonl").read_text().splitlines()]
    told = [(e["before"], e["total_frames"]) for e in events if e["event"] == "extended"]
    assert told == [(200, 450), (450, 600)]
    assert [(x.total_frames, x.finished) for x in legs.former_legs(extended)] == [
        (200, True),
        (450, False),
    ]
    code, out, err = run(capsys, "verify", extended)
    assert code == 0, out + err
    links = verify.read_chain(extended)
    assert f"at {len(links)} points, up to env frame {links[-1]['env_frames']}" in out


def test_a_divergence_after_the_extension_is_found(extended, tmp_path, capsys):
    folder = Path(shutil.copytree(extended, tmp_path / "run"))
    first = legs.former_legs(folder)[0].end.count
    at = [x["env_frames"] > first for x in verify.read_chain(folder)].index(True)
    arguments = ("verify", folder, "--from", f"{first:012d}", "--frames", 1)
    assert run(capsys, *arguments)[0] == 0
    change(folder, at, "weights")
    code, out, _ = run(capsys, *arguments)
    assert code == 1
    assert "diverged: weights" in out


def recorded(folder: Path, at: int, **told: object) -> None:
    """Write down that a run went on in another way."""
    manifest = json.loads((folder / "manifest.json").read_text()) | told
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for kind in told:
        with (folder / "events.jsonl").open("a") as file:
            file.write(json.dumps({"time": 1.0, "event": kind, "env_frames": at}) + "\n")


TWO = {"from": 2, "to": 1, "lost": ["running episodes"]}
CUDA = {"from": "cuda", "to": "cpu"}


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"regrouped": TWO}, "distributed.processes was 2, then 1 (regrouped: not exact)"),
        ({"regrouped": [TWO, {"from": 1, "to": 4}]}, "was 2, then 1, then 4 (regrouped"),
        ({"moved": CUDA}, "device was cuda, then cpu (not exact)"),
        ({"moved": [CUDA]}, "device was cuda, then cpu (not exact)"),
    ],
)
def test_a_run_that_changed_its_processes_or_device_is_not_repeated(told, text, copy, capsys):
    first, *_, last = sorted(p.name for p in (copy / "checkpoints").glob("0*"))
    recorded(copy, int(last), **told)
    for start in ((), ("--from", first)):
        code, out, err = run(capsys, "verify", copy, *start)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert text in err
        assert ("regrouped" in told) != (f"saved after that ({int(last)} or later)" in err)


def test_what_came_after_a_change_of_device_is_repeated(copy, capsys):
    first = min(p.name for p in (copy / "checkpoints").glob("0*"))
    recorded(copy, int(first), moved=CUDA)
    code, out, err = run(capsys, "verify", copy, "--from", first, "--frames", 1)
    assert code == 0, out + err
    assert "device: cuda, then cpu (not exact) -> the same throughout" in out


def test_a_program_reads_the_verdict(copy, capsys):
    code, out, _ = run(capsys, "verify", copy, "--frames", 1, "--json")
    told = json.loads(out)
    assert (code, told["same"], told["compared"], told["divergence"]) == (0, True, 1, None)
    change(copy, 0, "weights")
    code, out, _ = run(capsys, "verify", copy, "--frames", 1, "--json")
    told = json.loads(out)
    assert (code, told["same"], told["divergence"]["kind"]) == (1, False, "weights")


@pytest.mark.slow
def test_losses_that_differ_are_shown_with_both_values(copy, capsys):
    records = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    at = next(i for i, r in enumerate(records) if "train/policy_loss" in r)
    true, records[at]["train/policy_loss"] = records[at]["train/policy_loss"], 77.0
    (copy / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    change(copy, at, "losses")
    code, out, _ = run(capsys, "verify", copy)
    assert code == 1
    assert f"train/policy_loss  expected 77.0  found {true!r}" in out


@pytest.mark.slow
def test_what_differs_between_then_and_now_is_listed(copy, capsys):
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["versions"]["torch"], manifest["hardware"]["cpu"] = "1.0", "an abacus"
    manifest["git"] = {"commit": "0" * 40, "diff": "x\ny\n"}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    code, out, _ = run(capsys, "verify", copy, "workflow.optimizer.lr=0.01")
    assert code == 1
    for text in (
        "versions.torch: 1.0 -> ", "hardware.cpu: an abacus -> ", f"code.commit: {'0' * 40} -> ",
        "code.uncommitted changes: 2 lines -> ", "options.workflow.optimizer.lr: 0.001 -> 0.01",
    ):  # fmt: skip
        assert text in out


def test_mistakes_with_verify_are_one_message(copy, tmp_path, capsys):
    assert "is not a run directory" in run(capsys, "verify", tmp_path / "nothing")[2]
    code, _, err = run(capsys, "verify", copy, "--from", "000000000001")
    assert code == 2
    assert "there is no checkpoint" in err
    assert "Did you mean 'gamma'?" in run(capsys, "verify", copy, "workflow.gama=1")[2]
    with FolderLock(copy):
        assert "is being trained" in run(capsys, "verify", copy, "--from", "latest")[2]
    (copy / "chain.jsonl").unlink()
    code, _, err = run(capsys, "verify", copy)
    assert code == 2
    assert "has no chain.jsonl" in err


def test_a_second_run_that_fails_says_why(copy, capsys):
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("id: CartPole-v1", "id: CartPoll-v1"))
    code, _, err = run(capsys, "verify", copy)
    assert code == 2
    assert "the rerun failed" in err
    assert "CartPole" in err


@pytest.mark.parametrize("name", some_of(["sac_pendulum", "ppo_cartpole"]))
def test_debug_finds_nothing_wrong_with_what_is_right(name, capsys):
    code, out, err = run(capsys, "debug", f"+experiment={name}", "device=cpu", "--frames", 200)
    assert code == 0, out + err
    for part in ("env frames", "inputs", "gradients", "largest activations", "time"):
        assert part in out
    memory = out[out.index("\nmemory, without the checks") :]
    for part in ("collect", "update", "optimizer", "weights by module", "largest tensors"):
        assert part in memory
    assert memory.index("of updates:") > memory.index("time, without the checks")
    assert "error" not in out


BROKEN = """
import gymnasium as gym, numpy as np, torch
from torch import nn

class Net(nn.Module):
    def __init__(self, in_dim, out_dim=8):
        super().__init__()
        self.first, self.act, self.out_dim = nn.Linear(in_dim, 8), nn.ReLU(), 8
        self.bad, self.idle = Logarithm(), nn.Linear(8, 8)
        nn.init.constant_(self.first.bias, -100.0)
    def forward(self, x, state=(), is_first=None):
        return self.bad(self.act(self.first(x))), state

class Logarithm(nn.Module):
    def forward(self, x):
        return x if NUMBERS else torch.log(x - 1)

class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    def reset(self, *, seed=None, options=None): return np.zeros(3, np.float32), {}
    def step(self, action): return np.full(3, 5.0, np.float32), 0.0, False, False, {}
"""


@pytest.mark.parametrize("finite", [True, False])
def test_debug_names_what_is_wrong(finite, tmp_path, monkeypatch, capsys):
    module = f"broken_{finite}".lower()
    (tmp_path / f"{module}.py").write_text(BROKEN.replace("NUMBERS", str(finite)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = (
        "debug", "+experiment=ppo_cartpole", "device=cpu", f"env={module}:Env", "--frames", 400,
        f"workflow.network._target_={module}.Net", "workflow.network.out_dim=8",
    )  # fmt: skip
    code, out, err = run(capsys, *[a for a in arguments if "hidden" not in str(a)])
    assert code == 1, out + err
    if not finite:
        assert "module 'actor_net.bad' (Logarithm) was the first with a non-finite output" in out
        assert "its inputs were finite" in out
        return
    assert "observation 'state':" in out
    assert "outside the spec's [-1.0, 1.0]" in out
    assert "actions:" in out
    assert "'actor_net.act': 8 of 8 units are dead" in out
    assert "'actor_net.idle' never received a gradient" in out


def test_cleanup_says_first_and_acts_only_when_told(original, tmp_path, capsys):
    for name in ("a", "b"):
        shutil.copytree(original / "dqn_cartpole", tmp_path / "runs" / name)
    before = contents(tmp_path)
    arguments = ("cleanup", tmp_path / "runs", "--keep-best", 0, "--keep-recent", 1)
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert contents(tmp_path) == before
    assert "1 of 2 runs to clean; kept: 1 recent" in out
    assert "nothing was deleted. Add --yes" in out
    for kind in ("checkpoints", "buffers", "videos", "total"):
        assert f"  {kind}" in out
    told = json.loads(run(capsys, *arguments, "--json")[1])
    assert [(r["kept"], r["due"], r["cleaned"]) for r in told] == [
        ("recent", False, False),
        (None, True, False),
    ]
    assert contents(tmp_path) == before
    code, out, _ = run(capsys, *arguments, "--yes")
    assert code == 0
    assert out.count("cleaned") == 1
    assert "0 of 2 runs to clean" in run(capsys, *arguments, "--yes")[1]


def test_a_cleaned_run_says_so_to_every_verb(copy, capsys):
    run(capsys, "cleanup", copy, "--keep-best", 0, "--keep-recent", 0, "--yes")
    metrics = (copy / "metrics.jsonl").read_bytes()
    for verb in ("resume", "eval", "export-policy"):
        code, _, err = run(capsys, verb, copy)
        assert code == 2
        assert "`dreamlab cleanup` has deleted the checkpoints" in err
    assert "there is no checkpoint" in run(capsys, "verify", copy, "--from", "latest")[2]
    assert (copy / "metrics.jsonl").read_bytes() == metrics
    assert run(capsys, "verify", copy)[0] == 0  # from the start it needs no checkpoint


def test_mistakes_with_cleanup_are_one_message(tmp_path, capsys):
    assert "no runs found" in run(capsys, "cleanup", tmp_path)[2]
    assert (
        "--keep-best: must be at least 0, got -1"
        in run(capsys, "cleanup", tmp_path, "--keep-best", -1)[2]
    )


CHILD = """
import resource, sys
from dreamlab.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("arguments", [["verify"], ["export-policy", "--format", "torchscript"]])
def test_a_full_disk_is_one_message_and_the_run_stays_whole(arguments, copy, tmp_path):
    before = contents(copy)
    verb, *rest = arguments
    command = [sys.executable, "-c", CHILD, "200", verb, str(copy), *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("LabError: ")
    assert "Traceback" not in done.stderr
    assert contents(copy) == before


def test_a_place_that_cannot_be_written_to_is_one_message(copy, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "policy.pt"  # below a file: nothing can be made there
    code, _, err = run(capsys, "export-policy", copy, "--format", "torchscript", "--out", out)
    assert code == 2
    assert "Not a directory" in err
    code, _, err = run(capsys, "export-policy", copy, "--hub", tmp_path / "file" / "hub")
    assert code == 2
    assert err.startswith("LabError: ")
