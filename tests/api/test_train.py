"""Training from Python: the options of the command line, a handle on the run, results."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import dreamlab
from dreamlab.api.options import to_words
from dreamlab.config import compose, dump, load_config
from dreamlab.results.groups import read_groups

QUICK = {
    "tiny": True, "total_frames": 300, "terminal": "off", "device": "cpu",
    "eval": {"episodes": 2, "video": False}, "log": {"every_frames": 100},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    return dreamlab.train("ppo_cartpole", "seed=1", lr=2e-3, run_dir=folder, **QUICK)


def test_the_surface_is_light_listed_and_typed():
    code = (
        "import sys, dreamlab\n"
        "assert set(dreamlab.__all__) <= set(dir(dreamlab))\n"
        "dreamlab.experiments()\n"
        "heavy = {'torch', 'hydra', 'numpy', 'gymnasium', 'matplotlib', 'pandas'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in dreamlab.__all__:
        assert getattr(dreamlab, name).__doc__, name
    assert (Path(dreamlab.__file__).parent / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = dreamlab.trian  # type: ignore[attr-defined]


def test_experiments_name_what_can_be_trained():
    found = {e.name: e.env for e in dreamlab.experiments()}
    assert found["ppo_cartpole"] == "CartPole-v1"


# -- options --------------------------------------------------------------------------------------


def test_options_are_the_words_of_the_command_line():
    words = to_words(
        ["ppo_cartpole", "env.num_envs=3"],
        {
            "lr": np.float32(0.5), "seed": 7, "env": {"time_limit": 50}, "hidden": (8, 8),
            "workflow.gamma": 0.9, "run_dir": Path("some/where"), "tags": ["a"],
        },
    )  # fmt: skip
    config = load_config(compose(words))
    options = dump(config)["workflow"]
    assert (options["optimizer"]["lr"], options["gamma"]) == (0.5, 0.9)
    assert list(options["network"]["hidden"]) == [8, 8]
    assert (config.env.id, config.env.num_envs, config.env.time_limit) == ("CartPole-v1", 3, 50)
    assert (config.seed, config.run.dir, config.run.tags) == (7, "some/where", ("a",))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lrr": 1}, r"no option 'lrr'. Did you mean 'lr' \(workflow.optimizer.lr\)"),
        ({"num_envs": 2}, r"2 options have this name: env.num_envs, eval.num_envs"),
        ({"optimizer": {"lrr": 1}}, r"workflow.optimizer.lrr: .* Did you mean 'lr'"),
        ({"workflow.gama": 1}, r"workflow.gama: .* Did you mean 'gamma'"),
        ({"gamma": 2}, r"workflow.gamma: must be"),
        ({"seed": [1, 2]}, "one run has one seed"),
        ({"seed": "1"}, "seed: expected int"),
        ({"lr": object()}, "not object"),
        ({"trust_code": True}, "no file here is from a hub"),
    ],
)
def test_a_wrong_option_is_told_with_its_place_and_leaves_nothing(
    options, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dreamlab.LabError, match=said):
        dreamlab.train("ppo_cartpole", "training.total_frames=100", **options)
    assert not list(tmp_path.iterdir())


def test_a_dictionary_is_a_configuration(run, tmp_path):
    again = {**dump(run.config), "run": {"dir": str(tmp_path / "again")}, "seed": 2}
    made = dreamlab.train(again, log={"terminal": "off"}, total_frames=100)
    assert made.folder == tmp_path / "again"
    assert (made.config.seed, made.config.env.id) == (2, "CartPole-v1")
    assert dump(made.config)["workflow"] == dump(run.config)["workflow"]


# -- the run --------------------------------------------------------------------------------------


def test_a_run_tells_what_it_is(run):
    same = dreamlab.Run(str(run.folder))
    assert same.folder == run.folder
    assert repr(same) == f"Run({str(run.folder)!r}, status='finished')"
    assert same.config.seed == same.manifest["seed"] == 1
    assert dump(same.config)["workflow"]["optimizer"]["lr"] == 2e-3
    assert same.tag("good", "old") == ["good", "old"]
    assert same.tag(remove=["old"]) == same.tags == ["good"]
    with pytest.raises(dreamlab.LabError, match="is not a run"):
        dreamlab.Run(str(run.folder.parent))


def test_it_can_be_made_again_from_the_command_line(run):
    words = run.manifest["command"]
    assert words[:3] == ["dreamlab", "train", "ppo_cartpole"]
    assert dump(load_config(compose(words[2:]))) == dump(run.config)


def test_metrics_come_as_rows_as_a_frame_and_as_a_picture(run, tmp_path):
    frame = run.frame()
    assert len(frame) == len(run.metrics())
    assert frame["env_frames"].is_monotonic_increasing
    assert run.plot().axes[0].get_ylabel() == "return"
    figure = run.plot("train/value_loss", path=tmp_path / "loss.svg")
    assert (tmp_path / "loss.svg").read_text().startswith("<?xml")
    drawn = figure.axes[0].lines[0].get_ydata()
    assert list(drawn) == frame["train/value_loss"].dropna().tolist()
    with pytest.raises(dreamlab.LabError, match="Did you mean 'train/value_loss'"):
        run.plot("train/value_los")


def test_drawing_leaves_the_users_backend_alone(run):
    import matplotlib as mpl

    before = mpl.get_backend()
    run.plot()
    assert mpl.get_backend() == before
    assert "matplotlib.pyplot" not in sys.modules or not mpl.pyplot.get_fignums()


def test_without_pandas_the_error_names_the_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(dreamlab.LabError, match=r"pip install 'dreamlab\[data\]'"):
        run.frame()


def test_it_is_measured_as_its_agent_is(run, tmp_path):
    returns = run.evaluate(2, seed=3).returns
    assert returns == run.agent("latest").evaluate(2, seed=3).returns
    filmed = run.evaluate(2, seed=3, deterministic=False, video=tmp_path / "film.mp4")
    assert returns != filmed.returns
    assert filmed.video is not None
    assert filmed.video.stat().st_size > 1000
    with pytest.raises(dreamlab.LabError, match="episodes: must be"):
        run.evaluate(0)


def test_a_run_is_resumed_for_longer_and_only_for_that(run, tmp_path):
    short = {**QUICK, "total_frames": 100}
    first = dreamlab.train("ppo_cartpole", seed=5, run_dir=tmp_path / "run", **short)
    before = first.metrics()[-1]["env_frames"]
    more = first.resume(before + 100)
    assert more.folder == first.folder
    assert more.metrics()[-1]["env_frames"] >= before + 100
    assert dreamlab.train(more, total_frames=before + 200).status == "finished"
    assert more.metrics()[-1]["env_frames"] >= before + 200
    with pytest.raises(dreamlab.LabError, match="total_frames: must be"):
        more.resume(-1)
    with pytest.raises(dreamlab.LabError, match="only total_frames may change"):
        dreamlab.train(str(more.folder), lr=1e-3)


def test_an_interrupt_returns_an_interrupted_run(tmp_path):
    import _thread

    folder = tmp_path / "run"
    done = threading.Event()

    def interrupt() -> None:
        file = folder / "metrics.jsonl"
        while not (file.exists() and file.stat().st_size) and not done.wait(0.05):
            pass
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    options = {**QUICK, "total_frames": 10_000_000}
    run = dreamlab.train("ppo_cartpole", run_dir=folder, **options)
    done.set()
    assert run.status == "interrupted"
    assert run.agent().predict(np.zeros(4))[0] in (0, 1)


# -- results --------------------------------------------------------------------------------------


def test_runs_are_compared_as_on_the_command_line(run, tmp_path):
    found = dreamlab.compare({"mine": [run], "again": str(run.folder)}, metrics=["return"])
    assert "mine" in found.table
    assert "no winner is called" in str(found)
    assert [n for n in found.notes if "seed" in n] == [
        n for n in read_groups([f"mine={run.folder}"]).notes if "seed" in n
    ]
    frame = found.frame()
    assert frame["group"].tolist() == ["mine", "again"]
    assert frame["score"].nunique() == 1
    assert found.data()["metrics"]["return"]["groups"][0]["group"] == "mine"
    assert [t.get_text() for t in found.figure.legends[0].get_texts()] == [
        "mine (1 seed)", "again (1 seed)",
    ]  # fmt: skip
    assert {p.suffix for p in found.save(tmp_path)} == {".png", ".svg"}
    with pytest.raises(dreamlab.LabError, match="no runs to compare"):
        dreamlab.compare([])


# -- the tuner ------------------------------------------------------------------------------------

SPACE = {"lr": {"loguniform": [1e-4, 1e-1]}, "hidden": [[8], [16, 16]]}


def test_a_search_learns_from_what_it_is_told_and_goes_on(tmp_path):
    tuner = dreamlab.Tuner(SPACE, tmp_path, direction="minimize", startup_trials=4)
    for _ in range(8):
        trial = tuner.ask()
        tuner.tell(trial, abs(np.log10(trial.params["lr"]) + 2) + len(trial.params["hidden"]))
    best = tuner.best
    assert best.value == min(t.value for t in tuner.trials)
    assert len(best.params["hidden"]) == 1
    again = dreamlab.Tuner(SPACE, tmp_path, direction="minimize")
    assert (len(again), again.best) == (8, best)
    assert again.frame()["value"].min() == best.value
    assert set(again.importances()) == {"lr", "hidden"}
    with pytest.raises(dreamlab.LabError, match="already has a value"):
        tuner.tell(trial, 1.0)
    with pytest.raises(dreamlab.LabError, match="another search space"):
        dreamlab.Tuner({"lr": [1, 2]}, tmp_path, direction="minimize")
    with pytest.raises(dreamlab.LabError, match="minimize"):
        dreamlab.Tuner(SPACE, tmp_path)


def test_a_trial_of_a_dead_process_is_asked_for_again(tmp_path):
    left = dreamlab.Tuner(SPACE, tmp_path).ask()
    tuner = dreamlab.Tuner(SPACE, tmp_path)
    other = tuner.ask()
    assert other.params != left.params, "its process lives: the lock is held"
    assert left._taken is not None
    left._taken.owner.release()  # what the system does when a process dies
    trial = tuner.ask()
    assert (trial.params, trial.folder) == (left.params, left.folder), "its run would be resumed"
    assert len(tuner) == 2
    tuner.tell(trial, float("nan"))
    assert tuner.trials == []
    assert tuner.ask().params != trial.params, "it failed: it is not tried again"
    with pytest.raises(dreamlab.LabError, match="no trial has a value"):
        _ = tuner.best


def test_a_space_that_cannot_be_searched_leaves_no_file(tmp_path):
    with pytest.raises(dreamlab.LabError, match="Did you mean 'loguniform'"):
        dreamlab.Tuner({"lr": {"logunifrm": [1, 2]}}, tmp_path / "new")
    assert not (tmp_path / "new").exists()
