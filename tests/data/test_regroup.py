"""What cannot be kept of a buffer when a run continues with another number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dreamlab.core.files import CACHE
from dreamlab.data.regroup import keep_place
from tests.data.sets import write_v3
from tests.data.streams import feed, replay
from tests.data.test_dataset_source import source

PRIORITISED = [
    ("uniform", False),
    ("episodes", False),
    ("prioritised", True),
    ({"_target_": "online", "base": "episodes"}, False),
    ({"_target_": "online", "base": "prioritised"}, True),
    ({"_target_": "mixture", "uniform": 0.5, "recency": 0.5}, False),
    ({"_target_": "mixture", "uniform": 0.5, "prioritised": 0.5}, True),
]


@pytest.mark.parametrize(("sampler", "prioritised"), PRIORITISED)
def test_priorities_are_lost_where_there_were_any(sampler: Any, prioritised: bool, tmp_path: Path):
    options = {"sampler": sampler, "windows": "inside", "folder": tmp_path}
    former = replay(**options)
    feed(former, 16)
    share = replay(**options)
    assert share.regroup([former.save()], 0, 2) == ("priorities" if prioritised else "")
    assert len(share) == len(former) // 2


def test_an_episode_sampler_knows_the_starts_of_its_share(tmp_path: Path):
    options = {"sampler": "episodes", "windows": "inside", "folder": tmp_path}
    former = replay(**options)
    feed(former, 16)
    former.sample()
    share = replay(**options)
    share.regroup([former.save()], 0, 2)
    found = {int(i) for _ in range(20) for i in share.sample().index[:, 0]}
    assert found == set(share.window().ids().tolist())


@pytest.mark.parametrize(("sampler", "prioritised"), PRIORITISED)
def test_a_dataset_has_no_priorities_to_lose_unless_its_sampler_has(
    sampler: Any, prioritised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    made = source(write_v3(tmp_path / "set"), sampler=sampler)
    lost = "position, priorities" if prioritised else "position"
    assert keep_place(made, [made.save()], 0, 2) == f"{lost} of 1 new process"
