"""Scores of several tasks on one scale: by hand, and against rliable on the same matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rliable import library, metrics

from dreamlab.core.errors import LabError
from dreamlab.envs.suites.atari import ATARI_57
from dreamlab.results import stats, tables
from dreamlab.results.compare import Comparison, compare, remarks
from dreamlab.results.groups import read_groups
from dreamlab.results.normalize import Scale, atari_scores, kind_of, told
from tests.results.test_compare import make_run, make_seeds

RNG = np.random.default_rng(3)
GAMES = {"pong": (-20.7, 14.6), "breakout": (1.7, 30.5), "ms_pacman": (307.3, 6951.6)}
RELIABLE = {
    "iqm": metrics.aggregate_iqm, "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
}  # fmt: skip


def write(folder: Path, scores: dict[str, list[float]], suite: str) -> str:
    """Write a run per score, one folder for all tasks."""
    for task, finals in scores.items():
        make_seeds(folder / task, finals, f"env={suite}", f"env.id={task}")
    return str(folder)


def only(folders: list[str], rule: str = "auto", name: str = "return") -> Comparison:
    [found] = compare(read_groups(folders), name, None, rule)
    return found


def test_the_table_has_the_57_games():
    assert len(atari_scores()) == 57
    assert atari_scores().keys() == {game.replace("_", "") for game in ATARI_57}
    assert all(human > random for random, human in atari_scores().values())


@pytest.mark.slow
def test_human_normalised_statistics_are_those_of_rliable(tmp_path):
    """The same matrix of runs by games, normalised by hand, given to rliable."""
    raw = {
        group: {g: list(RNG.normal(scale * h, abs(h) / 4, 5)) for g, (_, h) in GAMES.items()}
        for group, scale in (("a", 1.0), ("b", 0.4))
    }
    found = only([write(tmp_path / k, v, "atari") for k, v in raw.items()])
    low, high = (np.array([GAMES[g][i] for g in sorted(GAMES)]) for i in (0, 1))
    matrix = {
        k: (np.array([v[g] for g in sorted(GAMES)]).T - low) / (high - low) for k, v in raw.items()
    }
    for group in ("a", "b"):
        for name, reliable in RELIABLE.items():
            expected = reliable(matrix[group])
            assert found.summaries[group][name].value == pytest.approx(expected, rel=1e-12)
    expected = metrics.probability_of_improvement(matrix["a"], matrix["b"])
    assert found.pairs[0].probability.value == pytest.approx(expected, rel=1e-12)
    _, bounds = library.get_interval_estimates(
        {"a": matrix["a"]}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=5_000
    )
    ours, width = found.summaries["a"]["iqm"], np.ptp(bounds["a"])
    assert [ours.low, ours.high] == pytest.approx(list(bounds["a"].ravel()), abs=0.08 * width)
    thresholds = np.linspace(0, 1.5, 7)
    profile, _ = library.create_performance_profile({"a": matrix["a"]}, thresholds, reps=10)
    mine = stats.profile(list(found.pooled(found.groups[0]).values()), thresholds)
    np.testing.assert_allclose(mine.value, profile["a"], rtol=1e-12)


def test_the_same_number_is_worth_what_its_task_says(tmp_path):
    mixed = {"CartPole-v1": [500, 250, 0], "Pendulum-v1": [-150, -775, -1400]}
    for task, finals in mixed.items():
        for seed, final in enumerate(finals):
            folder = tmp_path / "a" / f"{task}_{seed}"
            make_run(folder, [final] * 4, f"env={task}", seed=seed)
    found = only([str(tmp_path / "a")])
    assert found.scales == {
        "CartPole-v1": Scale("minmax", 0, 500), "Pendulum-v1": Scale("minmax", -1400, -150),
    }  # fmt: skip
    assert found.summaries["a"]["iqm"].value == 0.5
    assert found.of_task(found.groups[0], "Pendulum-v1")["mean"].value == -775


def test_the_worst_and_the_best_are_those_of_all_compared_runs_at_any_time(tmp_path):
    for task in ("CartPole-v1", "Acrobot-v1"):
        make_run(tmp_path / "a" / task, [1, 2, 3, 8], f"env={task}")
        make_run(tmp_path / "b" / task, [5, 11, 7, 6], f"env={task}")
    folders = [str(tmp_path / n) for n in "ab"]
    assert only(folders).scales["Acrobot-v1"] == Scale("minmax", 1, 11)
    [early] = compare(read_groups(folders), "return", 3_000)
    assert early.scales["Acrobot-v1"] == Scale("minmax", 1, 11)
    [first] = compare(read_groups(folders), "return", 1_000)
    assert first.scales["Acrobot-v1"] == Scale("minmax", 1, 5)


def test_runs_that_are_all_the_same_say_nothing():
    assert Scale("minmax", 5.0, 5.0)(np.array([5.0, 5.0])).tolist() == [0, 0]


SUITES = [
    ("dmc", ("walker_walk", "cheetah_run"), Scale("dmc", 0, 1000)),
    ("crafter", ("reward", "noreward"), Scale("as_is")),
    ("procgen", ("coinrun", "maze"), Scale("minmax", 2.5, 20)),
]


@pytest.mark.parametrize(("suite", "tasks", "scale"), SUITES, ids=[s[0] for s in SUITES])
def test_a_suite_has_its_own_scale(tmp_path, suite, tasks, scale):
    found = only([write(tmp_path / "a", {t: [10.0, 20.0] for t in tasks}, suite)])
    assert found.scales == dict.fromkeys(tasks, scale)


def test_one_task_stays_as_it_is_unless_asked(tmp_path):
    folders = [write(tmp_path / "a", {"pong": [14.6, -20.7]}, "atari")]
    assert only(folders).scales == {}
    assert only(folders).summaries["a"]["mean"].value == pytest.approx(-3.05)
    assert only(folders, "atari").summaries["a"]["mean"].value == pytest.approx(0.5)
    assert only(folders, "minmax").summaries["a"]["mean"].value == pytest.approx(0.5, abs=0.2)


def test_games_of_other_makers_of_environments_are_known(tmp_path):
    for name in ("ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4", "ms_pacman"):
        make_run(tmp_path / "a" / name, [307.3] * 4, f"env={name}")
    found = only([str(tmp_path / "a")], "atari")
    assert {v.tolist()[0] for v in found.pooled(found.groups[0]).values()} == {0}


def test_what_has_no_such_scale_is_refused(tmp_path):
    folders = [make_seeds(tmp_path / "a", [1, 2])]
    with pytest.raises(LabError, match="no human score is known for CartPole-v1"):
        _ = only(folders, "atari").scales
    with pytest.raises(LabError, match="CartPole-v1 is not a task of the Control Suite"):
        _ = only(folders, "dmc").scales
    with pytest.raises(LabError, match="Did you mean 'minmax'"):
        only(folders, "minmx")


def test_only_returns_have_the_scale_of_a_suite(tmp_path):
    tasks = {"walker_walk": [100.0, 900.0], "cheetah_run": [100.0, 900.0]}
    folders = [write(tmp_path / "a", tasks, "dmc")]
    assert kind_of(only(folders, "dmc").scales) == "dmc"
    assert kind_of(only(folders, "dmc", "train/value_loss").scales) == "minmax"


def test_every_output_says_how_scores_were_normalised(tmp_path):
    tasks = {"walker_walk": [100.0, 900.0], "cheetah_run": [500.0, 700.0]}
    folders = [write(tmp_path / "a", tasks, "dmc")]
    found = only(folders)
    assert found.data()["normalization"] == {
        "asked": "auto", "used": "dmc",
        "tasks": {t: {"kind": "dmc", "low": 0.0, "high": 1000.0} for t in tasks},
    }  # fmt: skip
    row = found.data()["groups"][0]
    assert row["scores"]["walker_walk"] == [100, 900]
    assert row["normalized_scores"]["walker_walk"] == [0.1, 0.9]
    assert row["mean"]["value"] == pytest.approx(0.55)
    assert row["tasks"]["cheetah_run"]["mean"]["value"] == 600
    for form in ("latex", "markdown"):
        assert "normalized: divided by 1,000" in tables.in_format([found], form)
    assert "normalized: divided by 1,000" in tables.text(found)
    lines = tables.in_format([found], "csv").splitlines()
    assert "all,a,eval/return,4000,frames,dmc,2,4,mean,0.55," in lines[8]
    assert lines[1].startswith("cheetah_run,a,eval/return,4000,frames,none,1,2,iqm,600.0,")
    raw = only(folders, "none")
    assert raw.data()["normalization"] == {"asked": "none", "used": "none", "tasks": {}}
    assert "scores of several tasks are pooled without normalization" in remarks(
        read_groups(folders), [raw]
    )
    assert "all tasks, raw" in tables.text(raw)


def test_a_sentence_about_scales_names_what_only_it_can_tell():
    scales = {"a": Scale("minmax", 1, 2.5), "pong": Scale("atari", -20.7, 14.6)}
    assert told(scales) == (
        "human-normalized: 0 is random, 1 is human (pong); "
        "0 is the lowest, 1 the highest value of the compared runs (a 1 to 2.5)"
    )
    assert kind_of(scales) == "mixed"
