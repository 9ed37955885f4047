"""What is recorded of agents that plan: a figure, a table, and the blocks of pages."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("planning_curves")


def run(seed: int, **last: float | None):
    cpu_seconds = last.pop("cpu_seconds", None)
    points = [{"env_frames": f, "time/wall_s": f / 2, "eval/return": 1.0} for f in (100, 200)]
    points[-1].update({f"eval/{k}": v for k, v in last.items()})  # type: ignore[arg-type]
    return {
        "seed": seed, "status": "finished", "seconds": 120.0, "cpu_seconds": cpu_seconds,
        "commit": "abc", "command": "dreamlab train", "points": points,
    }  # fmt: skip


def test_every_page_is_that_of_the_recorded_runs(command):
    found = json.loads((command.RESULTS / "planning.json").read_text())
    blocks = 0
    for path in sorted(command.PAGES.glob("*.md")):
        text = path.read_text()
        blocks += len(command.BLOCK.findall(text))
        where = "python benchmarks/planning_curves.py FOLDER --minutes 0 --record"
        assert command.placed(text, found) == text, f"run: {where}"
    assert blocks >= 4


def test_a_block_has_a_figure_once_something_is_recorded(command):
    page = "a\n<!-- planning: pendulum, TD-MPC, TD-M(PC)² -->\nold\n<!-- /planning -->\nb\n"
    none = command.placed(page, {"pendulum": {"SAC": [run(1)]}})
    assert "Not recorded so far: " in none
    assert "--only pendulum --names tdmpc_pendulum tdmpc_square_pendulum --record" in none
    assert "old" not in none
    assert "planning_pendulum.png" not in none
    some = command.placed(none, {"pendulum": {"TD-MPC": [run(1), run(2)], "SAC": [run(1)]}})
    assert "| TD-MPC | 200 | 1, 1 | 2, 2 |" in some
    assert "![pendulum](../../benchmarks/results/planning_pendulum.png)" in some
    assert "SAC" not in some
    assert "Not recorded" not in some


def test_columns_show_what_was_measured(command):
    told = {"policy_return": 3.0, "overestimation": -4.0, "policy_overestimation": 5.0}
    of = [
        ("pendulum", "A", [run(1, cpu_seconds=90.0, **told), run(2)]),
        ("pendulum", "B", [run(1)]),
    ]
    head, _, a, b = command.rows(of, whole=False)
    assert head == (
        "| algorithm | frames | returns | policy alone | overestimation | of the policy alone "
        "| minutes | CPU minutes |"
    )
    assert a == "| A | 200 | 1, 1 | 3 | -4 | 5 | 2, 2 | 1.5, ? |"
    assert b == "| B | 200 | 1 | - | - | - | 2 | - |"
    assert "CPU" not in command.rows(of[1:], whole=False)[0]


def test_runs_that_measured_less_are_drawn_beside_others(command, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    shown: list[tuple[str, list[str]]] = []

    def look(figure, path):
        for axis in figure.axes:
            labels = [t.get_text() for t in axis.get_legend().get_texts()]
            shown.append((axis.get_ylabel(), labels))

    monkeypatch.setattr(Figure, "savefig", look)
    both = [run(1, policy_return=3.0, policy_overestimation=5.0), run(2, policy_return=3.0)]
    command.draw("pendulum", {"SAC": [run(1)], "TD-MPC2": both}, tmp_path / "x.png")
    assert shown == [
        ("eval/return", ["SAC (1 seeds)", "TD-MPC2 (2 seeds)"]),
        ("eval/policy_return", ["TD-MPC2 (2 seeds)"]),
        ("eval/policy_overestimation", ["TD-MPC2 (1 seeds)"]),
    ]
