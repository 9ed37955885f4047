"""The list of tasks is trained in order, stopped in time and told beside the published curves."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dreamlab import build
from dreamlab.config import compose, load_config, to_yaml
from dreamlab.results.published import Published
from tests.helpers import need
from tests.sweeps.many import mps_stand_in

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def command(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_learning")


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_learning_record")


def entries():
    return importlib.import_module("gpu_learning_list").ENTRIES


# -- the list -------------------------------------------------------------------------------------


def test_the_first_seeds_of_all_tasks_come_first(command, tmp_path):
    jobs = command.make_jobs(tmp_path, command.choose([], None, None), [])
    seeds = [j.seed for j in jobs]
    assert seeds == sorted(seeds)
    assert len({j.entry.task for j in jobs if j.seed == 1}) == 10
    assert len({j.folder for j in jobs}) == len(jobs)


def test_a_task_or_one_of_its_variants_is_chosen(command, tmp_path):
    both = command.choose(["walker_walk"], 2, 100_000)
    assert [e.name for e in both] == ["dreamer_v3", "dreamer_v3_2023", "tdmpc2"]
    one = command.choose(["walker_walk/dreamer_v3_2023"], 1, None)
    jobs = command.make_jobs(tmp_path, one, ["tiny=true"])
    assert [j.folder for j in jobs] == [tmp_path / "walker_walk/dreamer_v3_2023/seed_1"]
    assert jobs[0].options[-1] == "tiny=true"
    with pytest.raises(SystemExit, match="walker_wlak"):
        command.choose(["walker_wlak"], None, None)


def test_variants_are_trained_beside_what_is_named(command, tmp_path):
    rule = "workflow.optimizer={lr: 1e-4, eps: 1e-8}"
    texts = (f"small:walker_walk:dreamer_walker:workflow.size=1m,{rule}",
             "boxer:boxing:dreamer_atari100k")  # fmt: skip
    variants = [command.variant(text) for text in texts]
    small = ("+experiment=dreamer_walker", "env.id=walker_walk", "workflow.size=1m")
    assert variants[0].options[:3] == small
    assert variants[0].options[3] == rule
    assert [e.needs for e in variants] == ["dm_control", "ale_py"]
    assert command.choose([], None, None, variants) == variants
    both = command.choose(["walker_walk/tdmpc2"], 1, 4_000, variants)
    assert [(e.name, e.frames) for e in both] == [(n, 4_000) for n in ("tdmpc2", "small", "boxer")]
    for wrong in ("small:walker_walk", "../x:walker_walk:dreamer_walker",
                  "tdmpc2:walker_walk:tdmpc2_dmc_proprio"):  # fmt: skip
        with pytest.raises(SystemExit, match="--variant"):
            command.variant(wrong)


def test_a_pack_has_what_a_record_needs_and_no_weights(command, recording, tmp_path):
    run = tmp_path / "here/walker_walk/dreamer_v3/seed_1"
    write_run(run, 1, steady(4_000, 1.0))
    (run / "checkpoints/000001").mkdir(parents=True)
    (run / "checkpoints/000001/meta.json").write_text("{}")
    (run / "weights.pt").write_bytes(b"x")
    assert "packed 3 files" in command.pack(tmp_path / "here", tmp_path / "out/p.tar.xz")
    with tarfile.open(tmp_path / "out/p.tar.xz") as tar:
        tar.extractall(tmp_path / "there", filter="data")
    texts = [recording.write_record(tmp_path / name) for name in ("here", "there")]
    assert texts[0] == texts[1]
    assert "| walker_walk, dreamer_v3 | 4,000 |" in texts[1]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["p.tar.xz"]


def test_every_entry_is_a_configuration_that_holds(command, tmp_path):
    for job in command.make_jobs(tmp_path, command.choose([], 1, None), []):
        config = load_config(compose(list(job.options)))
        build.check(config)
        assert not config.eval.video
        assert config.training.total_frames == job.entry.frames


def test_what_is_not_installed_is_skipped_and_said(command, capsys):
    some = [replace(entries()[0], needs="no_such_simulator"), replace(entries()[2], needs="numpy")]
    assert command.installed(some) == some[1:]
    assert "no_such_simulator is not installed: walker_walk" in capsys.readouterr().out


def test_the_experiment_of_2023_is_that_of_2023():
    c = load_config(compose(["+experiment=dreamer_v3_2023_dmc_proprio"]))
    w = c.workflow.config
    kinds = [o.target for o in (w.optimizer, w.actor_optimizer, w.critic_optimizer)]
    assert kinds == ["adam"] * 3
    assert [o.config.lr for o in (w.optimizer, w.actor_optimizer, w.critic_optimizer)] == [
        1e-4, 3e-5, 3e-5,
    ]  # fmt: skip
    assert (w.optimizer.config.clip, w.optimizer.config.agc) == (1000, 0)
    assert w.optimizer.config.warmup_steps == 0
    parts = (w.rssm, w.encoder, w.decoder, w.reward, w.cont, w.actor, w.critic)
    assert {p.config.norm for p in parts} == {"layer"}
    assert {w.reward.config.bins, w.critic.config.bins} == {"symlog"}
    assert (w.actor_grad, w.scales.dyn, w.scales.repval) == ("dynamics", 0.5, 0.0)
    assert (w.rssm.config.deter, w.rssm.config.hidden, w.rssm.config.classes) == (512, 512, 32)
    assert (c.env.repeat, c.env.num_envs, c.training.phases[0].train_ratio) == (2, 4, 512)


# -- processes ------------------------------------------------------------------------------------


def stand_in(command, folder: Path, code: str):
    """Return a job that runs a few lines of Python instead of a training."""

    class StandIn(command.Job):
        @property
        def command(self):
            return [sys.executable, "-c", code]

    return StandIn(entries()[0], 1, folder / "seed_1", ())


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.02)


SAVES = """
import pathlib, signal, sys, time
here = pathlib.Path({folder!r})
def save(*_):
    (here / "saved").touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, save)
(here / "up").touch()
time.sleep(60)
"""


def test_runs_are_told_to_save_when_the_time_is_up(command, tmp_path, capsys):
    crew = command.Crew(1, dict(os.environ))
    crew.start(stand_in(command, tmp_path, SAVES.format(folder=str(tmp_path))))
    wait_for(tmp_path / "up")
    command.stop(crew, tmp_path)
    assert (tmp_path / "saved").exists()
    assert not crew.failed
    assert "stopped walker_walk" in capsys.readouterr().out


def test_a_run_that_fails_is_told_with_its_last_words(command, tmp_path, capsys):
    crew = command.Crew(1, dict(os.environ))
    job = stand_in(command, tmp_path, "raise SystemExit('no room left')")
    command.work(crew, [job], command.Clock(60), command.Watcher([tmp_path]))
    assert crew.failed == [job]
    assert "no room left" in capsys.readouterr().out


def test_a_run_that_does_not_stop_is_recorded_and_killed(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "RECORD_S", 0.2)
    monkeypatch.setattr(command, "GRACE_S", 0.1)
    up = tmp_path / "up"
    deaf = "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += f"pathlib.Path({str(up)!r}).touch(); time.sleep(60)"
    crew = command.Crew(1, dict(os.environ))
    crew.start(stand_in(command, tmp_path, deaf))
    wait_for(up)
    command.stop(crew, tmp_path)
    assert not crew.running
    assert (tmp_path / "record/gpu_learning.md").exists()
    assert "killed walker_walk" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_runs_save_when_the_command_is_killed(command, tmp_path):
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(BENCHMARKS)!r}]\n"
        "import os, pathlib, gpu_learning, time\n"
        "from tests.benchmarks.test_gpu_learning import SAVES, stand_in\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "job = stand_in(gpu_learning, folder, SAVES.format(folder=str(folder)))\n"
        "gpu_learning.Crew(1, dict(os.environ)).start(job)\n"
        "time.sleep(60)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", code])
    wait_for(tmp_path / "up")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    wait_for(tmp_path / "saved")


def test_several_runs_share_the_cores(command, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "OMP_NUM_THREADS" not in command.share(1)
    assert int(command.share(10_000)["OMP_NUM_THREADS"]) == 1


def test_several_runs_have_mps_while_they_run(command, tmp_path, monkeypatch, capsys):
    asked = mps_stand_in(tmp_path, monkeypatch)
    with command.mps(tmp_path / "f", 1) as variables:
        assert not variables
    assert asked() == []
    with command.mps(tmp_path / "f", 2) as variables:
        assert "CUDA_MPS_PIPE_DIRECTORY" in variables
    assert asked()[-1].startswith("quit")
    assert "MPS shares the GPU" in capsys.readouterr().out


# -- the record -----------------------------------------------------------------------------------


def write_run(folder: Path, seed: int, points: list[tuple[int, int, float]], *options: str) -> None:
    """Write a run directory with these frames, episodes so far and returns."""
    options = options or ("+experiment=dreamer_walker",)
    folder.mkdir(parents=True)
    config = load_config(compose([*options, f"seed={seed}"]))
    (folder / "config.yaml").write_text(to_yaml(config))
    about = {"id": "1", "name": "n", "seed": seed, "status": "interrupted"}
    about |= {"command": ["dreamlab", "train", *options, "run.dir=/private/x", f"seed={seed}"]}
    about |= {"git": {"commit": "abcdef0123456789"}, "hardware": {"gpus": ["A GPU"]}}
    (folder / "manifest.json").write_text(json.dumps({**about, "versions": {"torch": "2.9"}}))
    lines = [
        {"env_frames": f, "episodes": n, "episode/return": r, "time/wall_s": f / 100}
        for f, n, r in points
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


def steady(until: int, score: float) -> list[tuple[int, int, float]]:
    return [(f, f // 500, score) for f in range(2_000, until + 1, 2_000)]


def test_a_score_is_the_mean_of_the_episodes_in_its_stretch(recording):
    frames, returns = np.array([10, 20, 30]), np.array([1.0, 2.0, 5.0])
    curve = recording.Curve(1, frames, returns, np.array([1, 1, 3]), 30)
    assert curve.score(30, 20) == (2 + 3 * 5) / 4
    assert curve.score(20, 20) == 1.5
    assert curve.score(5, 20) is None
    assert curve.scores(20) == ([20, 30], [1.5, 4.25])


def test_episodes_of_a_record_are_those_since_the_one_before(recording, tmp_path):
    write_run(tmp_path / "a", 1, [(100, 2, 1.0), (200, 5, 2.0), (300, 6, 3.0)])
    curve = recording.curve_of(recording.read_member(tmp_path / "a"))
    assert curve.episodes.tolist() == [2, 3, 1]
    assert curve.reached == 300


def test_a_score_of_evaluations_names_the_frames_of_the_last_one(recording):
    """Training may have gone on: what it is compared with is the published curve at these."""
    evals = [(s, np.array(at), np.array([9.0] * len(at)), np.ones(len(at), np.int64), 35_000, True)
             for s, at in ((1, [10_000, 20_000]), (2, [20_000, 30_000]))]  # fmt: skip
    curves = [recording.Curve(*x) for x in evals]
    points = [np.array(x) for x in ([10_000.0, 40_000.0], [100.0, 400.0], [10.0, 10.0])]
    published = Published("s", "t", "tdmpc2", 3, "tdmpc2", *points)
    rows = recording.rows_of(recording.Result("t", "n", (), tuple(curves), published))
    assert [(r.frames, r.scores, r.mean) for r in rows] == [(20_000, {1: 9.0, 2: 9.0}, 200.0)]
    none = recording.Curve(1, np.zeros(0), np.zeros(0), np.zeros(0), 5_000, True)
    assert none.end == 5_000


def test_the_recorded_page_is_that_of_the_recorded_numbers(recording, tmp_path):
    results = BENCHMARKS / "results"
    for name in ("gpu_learning.json", "gpu_learning.md"):
        (tmp_path / name).write_bytes((results / name).read_bytes())
    recording.rewrite(tmp_path)
    for name in ("gpu_learning.json", "gpu_learning.md"):
        same = (tmp_path / name).read_text() == (results / name).read_text()
        assert same, "run: python benchmarks/gpu_learning_record.py"


@pytest.mark.parametrize(("ours", "verdict"), [(105.0, "yes"), (111.0, "above"), (89.0, "below")])
def test_inside_is_within_one_deviation_of_the_published_mean(recording, ours, verdict):
    row = recording.Row("t", "n", 1, {1: ours}, 100.0, 10.0)
    assert row.verdict == verdict
    assert recording.Row("t", "n", 1, {1: ours}, None, None).verdict == "-"


def test_rows_are_where_all_seeds_were_and_where_fewer_went_on(recording):
    curves = [
        recording.Curve(s, np.array([n]), np.array([1.0]), np.array([1]), n)
        for s, n in ((1, 200_000), (2, 100_000), (3, 96_000))
    ]
    points = [np.array(x) for x in ([50_000.0, 100_000.0], [100.0, 200.0], [10.0, 20.0])]
    published = Published("s", "t", "dreamerv3", 5, "dreamerv3", *points)
    rows = recording.rows_of(recording.Result("t", "n", (), tuple(curves), published))
    assert [r.frames for r in rows] == [96_000, 200_000]
    assert [list(r.scores) for r in rows] == [[3], [1]]  # episodes only at the end of each
    assert rows[0].mean == pytest.approx(192.0)
    assert (rows[1].mean, rows[1].std) == (200.0, 20.0)  # held against the end of the curve


def test_the_record_tells_runs_beside_the_published_curve(recording, tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"walker_walk/dreamer_v3/seed_{seed}", seed, steady(100_000, 460.0))
    write_run(tmp_path / "crafter/dreamer_v3/seed_1", 1, steady(4_000, 3.0),
              "+experiment=dreamer_crafter")  # fmt: skip
    begun = tmp_path / "pong/dreamer_v3/seed_1"
    write_run(begun, 1, [], "+experiment=dreamer_atari100k")
    text = recording.write_record(tmp_path)
    lines = text.splitlines()
    assert lines[0] == "| task | frames | ours (seeds) | published mean and std | inside |"
    assert lines[2] == "| crafter, dreamer_v3 | 4,000 | 3 (1: 3) | - | - |"
    assert "| walker_walk, dreamer_v3 | 100,000 | 460 (1: 460, 2: 460) | " in lines[3]
    assert lines[3].endswith("| yes |")
    assert len(lines) == 4
    data = json.loads((tmp_path / "record/gpu_learning.json").read_text())
    one = data["results"][1]
    assert (one["task"], one["seed"], one["reached"]) == ("walker_walk", 1, 100_000)
    assert len(one["frames"]) == len(one["returns"]) == 50
    assert one["commit"] == "abcdef0123456789"
    assert one["options"] == ["dreamlab", "train", "+experiment=dreamer_walker", "seed=1"]
    page = (tmp_path / "record/gpu_learning.md").read_text()
    assert text in page
    assert "A GPU, torch 2.9, commit abcdef0123" in page


def test_a_damaged_run_is_left_out_and_said(recording, tmp_path, capsys):
    folder = tmp_path / "walker_walk/dreamer_v3/seed_1"
    write_run(folder, 1, steady(4_000, 1.0))
    (folder / "config.yaml").write_text("{")
    assert recording.read_results(tmp_path) == []
    assert "config.yaml" in capsys.readouterr().out


def test_a_record_is_put_beside_the_earlier_one_and_replaces_its_runs(recording, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    (results / "learning.md").touch()
    for place, frames in (("a", 4_000), ("b", 8_000)):
        write_run(tmp_path / place / "walker_walk/dreamer_v3/seed_1", 1, steady(frames, 1.0))
        write_run(tmp_path / place / f"walker_walk/{place}/seed_1", 1, steady(frames, 1.0))
        recording.write_record(tmp_path / place)
        recording.publish(tmp_path / place, results)
    assert {p.name for p in results.iterdir()} == {
        "gpu_learning.md", "gpu_learning.json", "gpu_learning_walker_walk.png", "learning.md",
    }  # fmt: skip
    runs = json.loads((results / "gpu_learning.json").read_text())["results"]
    assert {one["name"]: one["reached"] for one in runs} == {
        "dreamer_v3": 8_000, "a": 4_000, "b": 8_000,
    }  # fmt: skip


# -- the whole ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_the_time_cut_off_goes_on_and_finishes(tmp_path):
    need("dm_control")
    tiny = ("tiny=true", "device=cpu", "env.vector=sync", "log.every_frames=50", "eval.episodes=1")
    extra = [word for option in tiny for word in ("--extra", option)]
    line = [sys.executable, str(BENCHMARKS / "gpu_learning.py"), str(tmp_path / "x"), *extra]
    line += ["--only", "cartpole_swingup/dreamer_v3", "--seeds", "2", "--together", "2"]
    for minutes in ("0.7", "10"):
        ask = [*line, "--frames", "600", "--minutes", minutes]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 runs are finished" in done.stdout
    assert "| cartpole_swingup, dreamer_v3 | 600 |" in done.stdout
