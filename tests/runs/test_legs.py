"""Between which events a run was trained with one length."""

from __future__ import annotations

import pytest

from dreamlab.runs.legs import Leg, Moment, legs_of


def happened(text: str) -> list[dict]:
    """Return events from words like `resumed@300/40`, `extended:200-500`, in frames/updates."""
    out = []
    for word in text.split():
        kind, _, length = word.partition(":")
        kind, _, at = kind.partition("@")
        event: dict = {"event": kind}
        if at:
            frames, _, updates = at.partition("/")
            event |= {"env_frames": int(frames), **({"updates": int(updates)} if updates else {})}
        if length:
            former, _, new = length.rpartition("-")
            event["total_frames"] = int(new)
            if former:
                event["before"] = None if former == "none" else int(former)
        out.append(event)
    return out


def leg(total: int | None, frames: int, updates: int | None, finished: bool) -> Leg:
    return Leg(total, Moment(frames, updates), finished)


@pytest.mark.parametrize(
    ("events", "legs"),
    [
        ("phase@0 finished@300/9", []),
        ("phase@0 interrupted@100/3 resumed@100/3 finished@300/9 resumed@300/9", []),
        ("finished@300/9 resumed@300/9 extended:300-500 finished@500/19",
         [leg(300, 300, 9, True)]),
        ("finished@304/9 resumed@304/9 extended:none-500", [leg(None, 304, 9, True)]),
        ("finished@300/9 resumed@300/9 message extended:300-500 interrupted@400/12 "
         "resumed@400/12 finished@500/19 resumed@500/19 extended:500-700",
         [leg(300, 300, 9, True), leg(500, 500, 19, True)]),
        # interrupted before its end, or in its last evaluation
        ("interrupted@100/3 resumed@100/3 extended:300-500", [leg(300, 100, 3, False)]),
        ("interrupted@300/9 resumed@300/9 extended:300-500", [leg(300, 300, 9, False)]),
        # extended, not trained on, extended
        ("finished@300/9 resumed@300/9 extended:300-500 interrupted@300/9 resumed@300/9 "
         "extended:500-700", [leg(300, 300, 9, True)]),
        # undone by --checkpoint: what remains is as long as the run is now
        ("finished@300/9 resumed@300/9 extended:300-500 finished@500/19 resumed@100/3",
         [leg(300, 100, 3, False)]),
        ("finished@300/9 resumed@300/4 extended:300-500", [leg(300, 300, 4, False)]),
        # killed before its first checkpoint: it began again
        ("phase@0 extended:300-500 phase@0 finished@500/19", []),
        # of older versions
        ("finished@304 resumed@304 extended:500", [leg(304, 304, None, True)]),
        ("interrupted@100 resumed@100 extended:500", []),
        ("finished@304 resumed@304/9 extended:500 resumed@304/9 extended:500-700",
         [leg(304, 304, 9, True)]),
    ],
)  # fmt: skip
def test_legs_of_a_run(events, legs):
    assert legs_of(happened(events)) == legs


def test_damaged_events_are_no_legs():
    strange = [
        {"event": "resumed"}, {"event": "extended"}, {"event": "finished", "env_frames": "x"},
        {"event": "resumed", "env_frames": 10, "updates": None},
        {"event": "extended", "total_frames": [1], "before": {}},
        {"event": "resumed", "env_frames": 10}, {"event": "extended", "total_frames": True},
    ]  # fmt: skip
    assert legs_of(strange) == []
