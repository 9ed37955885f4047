"""Groups of seeds: how they are found, aligned and judged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dreamlab.config import to_yaml
from dreamlab.core.errors import LabError
from dreamlab.core.files import write_text
from dreamlab.results import figures, published
from dreamlab.results.compare import Comparison, remarks, usual_metrics, value_at
from dreamlab.results.compare import compare as compare_groups
from dreamlab.results.groups import Groups, read_groups
from dreamlab.runs.run import Run
from tests.helpers import config_of

FRAMES = (1_000, 2_000, 3_000, 4_000)


def compare(groups: Groups, name: str, *rest) -> Comparison:
    """Compare on what is one metric."""
    [found] = compare_groups(groups, name, *rest)
    return found


def make_run(folder: Path, returns, *overrides: str, seed: int = 0, frames=FRAMES) -> Path:
    """Write a run that logged these evaluation returns."""
    words = ["+experiment=ppo_cartpole", *overrides, f"seed={seed}"]
    run, config = Run(folder), config_of(*words)
    run.create(config.name, seed, ["dreamlab", "train", *words])
    write_text(run.config_path, to_yaml(config))
    records = [
        {"env_frames": f, "episode/return": v / 2, "eval/return": v, "train/value_loss": 1 / f}
        for f, v in zip(frames, returns, strict=True)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def make_seeds(folder: Path, finals, *overrides: str) -> str:
    """Write one run per final return."""
    for seed, final in enumerate(finals):
        curve = [final / 4, final / 3, final / 2, final]
        make_run(folder / f"seed_{seed}", curve, *overrides, seed=seed)
    return str(folder)


def test_the_last_value_seen_counts():
    frames, values = np.array([10, 20, 20, 30]), np.array([1.0, 2.0, 3.0, 4.0])
    assert value_at(frames, values, np.array([10, 15, 20, 29, 30])).tolist() == [1, 1, 3, 3, 4]


def test_success_is_compared_beside_the_return_where_every_run_tells_it(tmp_path):
    folder = Path(make_seeds(tmp_path / "a", [10, 20]))
    assert usual_metrics(read_groups([str(folder)])) == ["return"]
    for number, file in enumerate(sorted(folder.rglob("metrics.jsonl"))):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        told = [{**r, "eval/success": 0.25 + 0.5 * number} for r in records]
        file.write_text("".join(json.dumps(r) + "\n" for r in told))
        if number == 0:
            assert usual_metrics(read_groups([str(folder)])) == ["return"]
    groups = read_groups([str(folder)])
    assert usual_metrics(groups) == ["return", "success"]
    assert compare(groups, "success", None).metric == "eval/success"


def test_a_folder_of_seeds_is_one_group(tmp_path):
    groups = read_groups([make_seeds(tmp_path / "a", [10, 20, 30])]).groups
    assert [(g.name, g.seeds()) for g in groups] == [("a", "3")]


def test_a_folder_with_several_configurations_falls_into_groups(tmp_path):
    for rate in ("0.1", "0.2"):
        make_seeds(
            tmp_path / "all" / rate,
            [10, 20],
            f"workflow.optimizer.lr={rate}",
            f"run.tags=[t{rate}]",
        )
    groups = read_groups([str(tmp_path / "all")]).groups
    assert [g.name for g in groups] == ["all lr=0.1", "all lr=0.2"]
    assert [len(g.members) for g in groups] == [2, 2]


def test_groups_of_different_experiments_are_called_like_them(tmp_path):
    for name in ("one", "two"):
        make_seeds(tmp_path / "all" / name, [10, 20], f"name={name}")
    assert [g.name for g in read_groups([str(tmp_path / "all")]).groups] == ["all/one", "all/two"]


def test_where_and_how_a_run_logs_does_not_part_it_from_its_seeds(tmp_path):
    make_run(tmp_path / "a" / "x", [1, 2, 3, 4], "log.every_frames=7", seed=1)
    make_run(tmp_path / "a" / "y", [1, 2, 3, 4], "run.dir=somewhere", seed=2)
    assert len(read_groups([str(tmp_path / "a")]).groups) == 1


def test_a_name_puts_folders_together(tmp_path):
    one = make_run(tmp_path / "p" / "x", [1, 2, 3, 4], seed=1)
    two = make_run(tmp_path / "q" / "x", [1, 2, 3, 4], "workflow.optimizer.lr=0.5", seed=2)
    found = read_groups([f"both={one},{two}"])
    assert [(g.name, len(g.members)) for g in found.groups] == [("both", 2)]
    assert found.notes == ["both: its runs have different configurations"]


def test_folders_with_one_name_are_told_apart(tmp_path):
    paths = [str(make_run(tmp_path / k / "x", [1, 2, 3, 4])) for k in ("p", "q")]
    assert [g.name for g in read_groups(paths).groups] == ["p/x", "q/x"]
    seed = str(make_run(tmp_path / "p" / "seed_3", [1, 2, 3, 4]))
    assert [g.name for g in read_groups([seed]).groups] == ["p/seed_3"]
    with pytest.raises(LabError, match="two groups are named 'a'"):
        read_groups([f"a={paths[0]}", f"a={paths[1]}"])


def test_a_seed_that_is_there_twice_is_told(tmp_path):
    for name in ("x", "y"):
        make_run(tmp_path / "a" / name, [1, 2, 3, 4], seed=5)
    assert read_groups([str(tmp_path / "a")]).notes == ["a: seed 5 of CartPole-v1 occurs 2 times"]


def test_a_run_without_metrics_is_left_out_and_told(tmp_path):
    make_seeds(tmp_path / "a", [10, 20])
    empty = make_run(tmp_path / "a" / "seed_9", [], frames=(), seed=9)
    found = read_groups([str(tmp_path / "a")])
    assert len(found.members) == 2
    assert found.notes == [f"{empty}: no metrics yet, ignored"]
    with pytest.raises(LabError, match="have no metrics yet"):
        read_groups([str(empty)])


def test_runs_are_compared_up_to_the_shortest(tmp_path):
    make_run(tmp_path / "a" / "long", [1, 2, 3, 4], seed=0)
    short = make_run(tmp_path / "a" / "short", [10, 20], seed=1, frames=(1_500, 2_500))
    groups = read_groups([str(tmp_path / "a")])
    found = compare(groups, "return")
    assert (found.grid[0], found.grid[-1], found.at) == (1_500, 2_500, 2_500)
    assert found.scores(found.groups[0])["CartPole-v1"].tolist() == [2, 20]
    assert f"{short} ends at 2,500 env frames" in remarks(groups, [found])[0]
    assert compare(groups, "return", 2_000).scores(found.groups[0])["CartPole-v1"].tolist() == [
        2, 10,
    ]  # fmt: skip
    for frame in (1_000, 3_000):
        with pytest.raises(LabError, match=r"known for every run from 1,500 to 2,500"):
            compare(groups, "return", frame)


def test_runs_that_end_a_few_frames_apart_are_compared_at_their_ends(tmp_path):
    make_run(tmp_path / "a" / "x", [1, 2], seed=0, frames=(3_000, 6_000))
    make_run(tmp_path / "a" / "y", [3, 4], seed=1, frames=(3_010, 6_030))
    found = compare(read_groups([str(tmp_path / "a")]), "return")
    assert found.at == 6_000
    assert found.scores(found.groups[0])["CartPole-v1"].tolist() == [2, 4]


def test_a_curve_has_its_points_where_runs_were_evaluated(tmp_path):
    make_run(tmp_path / "a" / "x", [1, 2, 3, 4, 4], seed=0, frames=(100, 205, 300, 400, 400))
    make_run(tmp_path / "a" / "y", [1, 2, 3, 4], seed=1, frames=(102, 200, 310, 405))
    found = compare(read_groups([str(tmp_path / "a")]), "return")
    assert found.grid.tolist() == [102, 205, 310, 400]
    long = read_groups([str(make_run(tmp_path / "b", range(500), frames=range(1, 501)))])
    grid = compare(long, "return").grid
    assert (len(grid), grid[0], grid[-1]) == (100, 1, 500)


def test_the_return_is_that_of_evaluations_if_every_run_has_some(tmp_path):
    make_seeds(tmp_path / "a", [10, 20])
    folder = str(tmp_path / "a")
    assert compare(read_groups([folder]), "return").metric == "eval/return"
    path = tmp_path / "a" / "seed_0" / "metrics.jsonl"
    path.write_text(path.read_text().replace("eval/return", "eval/other"))
    assert compare(read_groups([folder]), "return").metric == "episode/return"


def test_an_unknown_metric_names_the_nearest(tmp_path):
    groups = read_groups([make_seeds(tmp_path / "a", [10])])
    with pytest.raises(LabError, match=r"no metric 'eval/retrun'. Did you mean 'eval/return'"):
        compare(groups, "eval/retrun")


def test_a_loss_is_the_total_or_else_every_part_that_all_runs_have(tmp_path):
    groups = read_groups([make_seeds(tmp_path / "a", [10, 20])])
    assert [c.metric for c in compare_groups(groups, "loss")] == ["train/value_loss"]
    for path in tmp_path.glob("a/*/metrics.jsonl"):
        path.write_text(path.read_text().replace("train/value", 'train/policy_loss": 1, "train/v'))
    groups = read_groups([str(tmp_path / "a")])
    assert [c.metric for c in compare_groups(groups, "loss")] == [
        "train/policy_loss", "train/v_loss",
    ]  # fmt: skip
    path.write_text(path.read_text().replace("train/v_loss", "train/other"))
    groups = read_groups([str(tmp_path / "a")])
    assert [c.metric for c in compare_groups(groups, "loss")] == ["train/policy_loss"]
    for path in tmp_path.glob("a/*/metrics.jsonl"):
        path.write_text(path.read_text().replace("train/policy_loss", "train/loss"))
    groups = read_groups([str(tmp_path / "a")])
    assert compare(groups, "loss").metric == "train/loss"
    for path in tmp_path.glob("a/*/metrics.jsonl"):
        path.write_text(path.read_text().replace("train/loss", "train/x"))
    path.write_text(path.read_text().replace("train/x", "train/y"))
    with pytest.raises(LabError, match="no metric 'train/loss'"):
        compare_groups(read_groups([str(tmp_path / "a")]), "loss")


def test_values_that_are_not_finite_are_left_out_and_told(tmp_path):
    folder = make_run(tmp_path / "a", [2, 3, 4], frames=FRAMES[1:])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"env_frames": 5000, "eval/return": "nan"}\n')
    groups = read_groups([str(folder)])
    found = compare(groups, "return")
    assert found.scores(found.groups[0])["CartPole-v1"].tolist() == [4]
    assert remarks(groups, [found]) == [
        f"{folder}: 1 values of eval/return are not finite and were ignored"
    ]


VERDICTS = [
    ([100, 101, 102], [10, 11, 12], "a is better than b"),
    ([10, 11, 12], [100, 101, 102], "b is better than a"),
    ([10, 50, 90], [20, 60, 100], "no winner is called: the intervals of the IQM overlap"),
    ([100, 101], [10, 11, 12], "no winner is called: fewer than 3 seeds"),
]


@pytest.mark.parametrize(("a", "b", "verdict"), VERDICTS, ids=[v[2] for v in VERDICTS])
def test_a_winner_is_called_only_if_seeds_and_intervals_allow(tmp_path, a, b, verdict):
    folders = [make_seeds(tmp_path / name, finals) for name, finals in (("a", a), ("b", b))]
    found = compare(read_groups(folders), "return")
    assert [p.verdict for p in found.pairs] == [verdict]
    higher = np.mean([[x > y for x in a] for y in b])
    assert found.pairs[0].probability.value == pytest.approx(higher)


def test_of_a_loss_only_the_order_is_told(tmp_path):
    for name, late in (("a", 0), ("b", 90)):
        for seed in range(3):
            frames = [f + late for f in (1_000, 2_000, 3_000, 9_000)]
            make_run(tmp_path / name / str(seed), [1] * 4, seed=seed, frames=frames)
    found = compare(read_groups([str(tmp_path / n) for n in "ab"]), "train/value_loss", 4_000)
    assert found.pairs[0].verdict == "a is higher than b"


def test_a_likely_tie_has_no_winner_though_the_iqms_are_apart(tmp_path):
    """One task of two decides the IQM; on the other nobody is better."""
    for name, finals in (("a", [100, 101, 102]), ("b", [10, 11, 12])):
        make_seeds(tmp_path / name / "one", finals)
        make_seeds(tmp_path / name / "two", [5, 6, 7], "env=Acrobot-v1")
    found = compare(read_groups([str(tmp_path / n) for n in "ab"]), "return", None, "none")
    a, b = (found.summaries[n]["iqm"] for n in "ab")
    assert a.low > b.high
    assert found.pairs[0].probability.value == 0.75
    assert found.pairs[0].verdict == "a is better than b"
    make_seeds(tmp_path / "b" / "two", [7, 8, 9], "env=Acrobot-v1")
    found = compare(read_groups([str(tmp_path / n) for n in "ab"]), "return", None, "none")
    assert found.pairs[0].verdict == (
        "no winner is called: the interval of the probability contains 0.5"
    )  # fmt: skip


# -- published curves -----------------------------------------------------------------------------

WALKER = ("env=dmc", "env.id=walker_walk")


def walker(folder: Path, final: float, *overrides: str) -> str:
    frames = (50_000, 250_000, 500_000)
    make_run(folder, [final / 4, final / 2, final], *WALKER, *overrides, frames=frames)
    return str(folder)


def member(folder: str):
    return read_groups([folder]).members[0]


def test_a_published_curve_is_found_for_states_and_for_images(tmp_path):
    states = published.find_published(member(walker(tmp_path / "s", 900)), None)
    images = walker(tmp_path / "i", 900, "env.options={obs: vision}")
    seen = published.find_published(member(images), "drqv2")
    assert states is not None
    assert seen is not None
    assert (states.suite, states.task, states.method) == (
        "dmc_proprio", "dmc_walker_walk", "ppo_fixhp",
    )  # fmt: skip
    assert (seen.suite, seen.method) == ("dmc_vision", "drqv2")
    assert (states.std >= 0).all()
    assert (np.diff(states.frames) > 0).all()


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        (("env=atari100k", "env.id=pong"), ("atari100k", "atari_pong")),
        (("env=atari", "env.id=james_bond"), ("atari57", "atari_jamesbond")),
        (("env=dmc", "env.id=cup_catch"), ("dmc_proprio", "dmc_ball_in_cup_catch")),
        (("env=procgen", "env.id=coinrun"), ("procgen", "procgen_coinrun")),
    ],
)
def test_suites_of_the_table_are_those_of_the_environments(tmp_path, overrides, place):
    run = member(str(make_run(tmp_path / "r", [1, 2, 3, 4], *overrides)))
    assert published.places(run)[0] == place
    curve = published.find_published(run, "dreamerv3")
    assert curve is not None
    assert (curve.suite, curve.task) == place


def test_an_unknown_method_names_the_nearest_and_an_unknown_task_says_so(tmp_path):
    groups = read_groups([walker(tmp_path / "w", 900)])
    with pytest.raises(LabError, match="Did you mean 'dreamerv3'"):
        published.against(tuple(groups.groups), "published:dreamer3")
    cart = read_groups([make_seeds(tmp_path / "c", [1])])
    with pytest.raises(LabError, match="no published curves for CartPole-v1"):
        published.against(tuple(cart.groups), "published")


def test_a_run_below_the_published_band_is_told(tmp_path):
    bad, good = walker(tmp_path / "bad", 300), walker(tmp_path / "good", 960)
    found = compare(read_groups([bad, good]), "return")
    curve = published.find_published(member(bad), "dreamerv3")
    assert curve is not None
    floor = float(curve.mean[-1] - curve.std[-1])  # the curve ends at 490,000
    assert 300 < floor < 960
    assert published.below(found, "published:dreamerv3") == [
        f"{bad}: eval/return 300 at 500,000 env frames is below the published band of dreamerv3 "
        f"({floor:.4g}: mean - std of 5 seeds), and has been since 50,000"
    ]
    early = published.below(found, "published:dreamerv3", 250_000)
    assert [w.partition(" is below")[0] for w in early] == [
        f"{bad}: eval/return 150 at 250,000 env frames",
        f"{good}: eval/return 480 at 250,000 env frames",
    ]


def test_a_run_is_warned_of_where_it_is_though_another_is_shorter(tmp_path):
    long = make_run(tmp_path / "long", [20, 300], *WALKER, frames=(10_000, 500_000))
    short = make_run(tmp_path / "short", [20], *WALKER, frames=(40_000,), seed=1)
    found = compare(read_groups([f"both={long},{short}"]), "return")
    warnings = published.below(found, "published:dreamerv3")
    assert warnings[0].startswith(f"{long}: eval/return 300 at 500,000 env frames is below")
    assert warnings[1] == (f"{short}: too early, the published curve starts at 49,000 frames")


def test_a_published_curve_says_where_it_is_from(tmp_path):
    groups = tuple(read_groups([walker(tmp_path / "w", 900)]).groups)
    curves = published.against(groups, "published:tdmpc2")
    assert list(curves["walker_walk"]) == ["tdmpc2 (published, 3 seeds)"]
    assert "github.com/nicklashansen/tdmpc2" in published.sources(curves)


def test_figures_are_pictures_and_the_same_every_time(tmp_path):
    groups = read_groups([make_seeds(tmp_path / k, f) for k, f in (("a", [1, 2]), ("b", [3]))])
    found = compare(groups, "return")
    drawn = figures.draw_all(found)
    assert drawn.keys() == {"curves", "mean_curves", "profile", "aggregates", "improvement"}
    again = {"curves": figures.learning_curves(found)}
    first = figures.save_all({"curves": drawn["curves"]}, tmp_path / "x", found.metric)
    second = figures.save_all(again, tmp_path / "y", found.metric)
    assert [p.name for p in first] == ["eval_return_curves.png", "eval_return_curves.svg"]
    for one, two, start in zip(first, second, (b"\x89PNG", b"<?xml"), strict=True):
        assert one.read_bytes() == two.read_bytes()
        assert one.read_bytes().startswith(start)


def test_a_budget_before_the_first_evaluation_is_met_by_the_nearest_one(tmp_path):
    one = make_run(tmp_path / "a", [10.0], frames=[6_039])
    two = make_run(tmp_path / "b", [20.0], frames=[6_025])
    groups = read_groups([str(one), str(two)])
    found = compare(groups, "return", 5_900)
    assert [found.scores(g)["CartPole-v1"].tolist() for g in found.groups] == [[10.0], [20.0]]
    told = [n for n in remarks(groups, [found]) if "is compared at 5,900" in n]
    assert told == [
        f"{one}: its first eval/return is at 6,039 env frames and is compared at 5,900",
        f"{two}: its first eval/return is at 6,025 env frames and is compared at 5,900",
    ]
    with pytest.raises(LabError, match="is known for every run at 6,039 env frames"):
        compare(groups, "return", 5_000)
    with pytest.raises(LabError, match=r"ends at 6,025\)"):
        compare(groups, "return", 9_000)


def test_runs_that_end_a_little_apart_are_compared_by_their_evaluations(tmp_path):
    late = make_run(tmp_path / "a", [10.0], frames=[6_400])
    early = make_run(tmp_path / "b", [20.0], frames=[6_025])
    groups = read_groups([str(late), str(early)])
    found = compare(groups, "return")
    assert (found.metric, found.at) == ("eval/return", 6_025)
    notes = remarks(groups, [found])
    assert f"{late}: its first eval/return is at 6,400 env frames and is compared at 6,025" in notes


def test_it_says_when_another_metric_is_compared_than_the_evaluation(tmp_path):
    whole = make_run(tmp_path / "a", [1.0, 2.0], frames=[1_000, 2_000])
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    bare = make_run(tmp_path / "b", [1.0, 2.0], frames=[1_000, 2_000], seed=1)
    without = [{k: v for k, v in r.items() if k != "eval/return"} for r in lines]
    write_records(bare, without)
    groups = read_groups([str(whole), str(bare)])
    found = compare(groups, "return")
    assert found.metric == "episode/return"
    said = f"episode/return is compared: eval/return has no value in {bare}"
    assert said in remarks(groups, [found])
    assert said not in remarks(groups, [compare(groups, "episode/return")])
    write_records(whole, without)
    groups = read_groups([str(whole), str(bare)])
    told = remarks(groups, [compare(groups, "return")])
    assert "episode/return is compared: no run has eval/return" in told
    write_records(whole, [*without, {**lines[1], "env_frames": 9_000}])
    write_records(bare, lines)
    groups = read_groups([str(whole), str(bare)])
    told = remarks(groups, [compare(groups, "return")])
    assert any(
        "eval/return is known for every run only from 9,000 env frames on" in n for n in told
    )


def write_records(folder: Path, records) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
