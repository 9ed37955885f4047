"""Numbers and tables as people read them."""

from __future__ import annotations

import pytest

from dreamlab.core.errors import LabError
from dreamlab.results import tables
from dreamlab.results.compare import compare
from dreamlab.results.groups import read_groups
from dreamlab.results.stats import Interval
from tests.results.test_compare import make_seeds

NAN = float("nan")
SHOWN = [
    (Interval(405.3, 225.4, 500), "405.3 [225.4, 500]"),
    (Interval(-1312.4, -1437, -1193.21), "-1,312 [-1,437, -1,193]"),
    (Interval(0.0932187, 0.0073984, 0.44735), "0.0932 [0.0074, 0.4474]"),
    (Interval(-0.000428, -0.001284, 2.4e-9), "-0.000428 [-0.001284, 0]"),
    (Interval(1.0, 1.0, 1.0), "1 [1, 1]"),
    (Interval(9.99999, NAN, NAN), "10 [-]"),
    (Interval(2e-7, -1e-7, 3e-7), "2e-07 [-1e-07, 3e-07]"),
    (Interval(0.0, 0.0, 0.0), "0 [0, 0]"),
    (Interval(3.2e12, NAN, NAN), "3.2e+12 [-]"),
]


@pytest.mark.parametrize(("interval", "text"), SHOWN, ids=[s[1] for s in SHOWN])
def test_an_interval_is_given_to_one_place(interval, text):
    assert tables.words(interval) == text


def test_latex_sets_numbers_as_mathematics(tmp_path):
    groups = read_groups([make_seeds(tmp_path / "a", [-2000.0, -1000.0, -3000.0])])
    table = tables.in_format(compare(groups, "return"), "latex")
    assert r"a & 3 & $-2{,}000\;[-3{,}000,\,-1{,}000]$ \\" in table
    assert table.startswith("% eval/return: IQM with 95 % stratified bootstrap intervals, at 4,000")
    tiny = read_groups([make_seeds(tmp_path / "b", [2e-7])])
    assert r"$2\times10^{-7}$" in tables.in_format(compare(tiny, "return"), "latex")


def test_a_table_holds_the_statistic_that_is_asked_for(tmp_path):
    groups = read_groups([make_seeds(tmp_path / "a", [0, 1, 2, 3, 94])])
    found = compare(groups, "return")
    for name, value in (("iqm", 2), ("mean", 20), ("median", 2)):
        assert f"| a | 5 | {value} [" in tables.in_format(found, "markdown", name)
    with pytest.raises(LabError, match="Did you mean 'median'"):
        tables.in_format(found, "markdown", "medain")


def test_a_task_is_named_once_and_every_group_in_each(tmp_path):
    for name in "ab":
        make_seeds(tmp_path / name / "one", [1, 2, 3])
        make_seeds(tmp_path / name / "two", [4, 5, 6], "env=Acrobot-v1")
    groups = read_groups([str(tmp_path / n) for n in "ab"])
    head, *rows = tables.summary(compare(groups, "return")[0])
    assert head == ["task", "group", "seeds", "IQM", "mean", "median"]
    assert [r[:3] for r in rows] == [
        ["Acrobot-v1", "a", "3"], ["", "b", "3"], ["CartPole-v1", "a", "3"], ["", "b", "3"],
        ["all tasks, normalized", "a", "3 x 2 tasks"], ["", "b", "3 x 2 tasks"],
    ]  # fmt: skip
    latex = tables.in_format(compare(groups, "return"), "latex")
    assert latex.count(r"\midrule") == 3
    assert r"\begin{tabular}{llrr}" in latex
