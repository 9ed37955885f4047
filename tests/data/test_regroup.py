"""What cannot be kept of a buffer when a run continues with another number of processes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dreamlab.core.errors import CheckpointError
from dreamlab.core.files import CACHE
from dreamlab.data.regroup import keep_place
from dreamlab.data.replay import Replay
from dreamlab.data.samplers import Online
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
WAITING = "fresh windows that were not sampled yet"
STEPS = ("action", "reward", "extras/latent")


def fresh(buffer: Replay) -> list[int]:
    """Return the starts of all windows that wait to be sampled once."""
    assert isinstance(buffer.sampler, Online)
    return buffer.sampler._pop(buffer.window(), 100).tolist()


def written(folder: Path, ranks: int, ticks: int, **options: Any) -> list[Any]:
    """Return the states of processes that wrote back extras before and after they were saved."""
    states = []
    for rank in range(ranks):
        one = replay(folder=folder / f"rank{rank}" if rank else folder, batch=64, **options)
        for _ in range(2):
            feed(one, ticks // 2)
            one.save()
            batch = one.sample()
            latent = torch.sin(batch.extras["latent"]) + rank
            one.update(batch.index, {"latent": latent})
        states.append(one.save())
    return states


@pytest.mark.parametrize(("then", "now"), [(2, 1), (1, 2), (2, 3)])
def test_what_was_seen_is_not_fresh_again(then: int, now: int, tmp_path: Path):
    states, options = [], {"sampler": "online", "capacity": 80}
    for rank in range(then):
        former = replay(folder=tmp_path / f"rank{rank}" if rank else tmp_path, **options)
        feed(former, 16)
        assert len(fresh(former)) == 8
        states.append(former.save())
    for rank in range(now):
        share = replay(folder=tmp_path / f"rank{rank}" if rank else tmp_path, **options)
        assert share.regroup(states, rank, now) == "", "nothing waited"
        assert fresh(share) == []
        begin = share.added
        feed(share, 12)
        ticks = sorted({start // 2 for start in fresh(share)})
        assert ticks[0] > begin - 4, "each holds a new step"
        assert ticks[0] <= begin, "and every new step is in one"
        assert np.diff(ticks).tolist() == [4] * (len(ticks) - 1)


def test_fresh_windows_that_waited_are_lost(tmp_path: Path):
    former = replay(sampler="online", batch=3, folder=tmp_path)
    feed(former, 16)
    former.sample()
    share = replay(sampler="online", batch=3, folder=tmp_path)
    assert share.regroup([former.save()], 0, 2) == WAITING


@pytest.mark.parametrize("storage", ["ram", "disk"])
@pytest.mark.parametrize(("then", "now", "ticks"), [(2, 1, 10), (2, 1, 16), (1, 2, 16), (2, 3, 18)])
def test_a_share_has_the_steps_as_they_were_when_saved(
    then: int, now: int, ticks: int, storage: str, tmp_path: Path
):
    options = {"storage": storage, "capacity": 40}
    states = written(tmp_path, then, ticks, **options)
    whole: dict[str, list[torch.Tensor]] = {k: [] for k in STEPS}
    for rank, state in enumerate(states):
        one = replay(folder=tmp_path / f"rank{rank}" if rank else tmp_path, batch=64)
        one.load(state)
        assert one.store is not None
        for name, value in one.store.take(0, ticks, STEPS).items():
            whole[name].append(value)
    shares = []
    for rank in range(now):
        share = replay(folder=tmp_path / f"rank{rank}" if rank else tmp_path, batch=64, **options)
        share.regroup(states, rank, now)
        state = share.save()
        share.load(state)
        assert share.store is not None
        shares.append(share.store.take(share.added - len(share) // 2, share.added, STEPS))
    for name, parts in whole.items():
        found = torch.cat([s[name] for s in shares], 1)
        expected = torch.cat(parts, 1)[:, -found.shape[1] :]
        assert found.shape[1] == min(ticks * then, 20 * now)
        assert torch.equal(found, expected), name


def test_after_a_failed_attempt_nothing_is_left_of_it(tmp_path: Path):
    states = written(tmp_path, 2, 8)
    share = replay(folder=tmp_path, batch=64)
    share.regroup(states, 0, 1)
    broken, *_ = (tmp_path / "rank1").glob("patch_*")
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-1] + b"x")
    with pytest.raises(CheckpointError):
        share.regroup(states, 0, 1)
    broken.write_bytes(whole)
    share.regroup(states, 0, 1)
    assert len(share) == 2 * 8 * 2


def test_a_replay_on_disk_stays_there(tmp_path: Path):
    """What is read takes as much memory as there are steps, not as there is room for."""
    options = {"storage": "disk", "capacity": 1_000_000, "folder": tmp_path}
    former = replay(**options)
    feed(former, 16)
    state, share = former.save(), replay(**options)
    tracemalloc.start()
    share.regroup([state], 0, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert share.store is not None
    assert peak < share.episode.nbytes + share.store.nbytes / 10


@pytest.mark.parametrize(("sampler", "prioritised"), PRIORITISED)
def test_priorities_are_lost_where_there_were_any(sampler: Any, prioritised: bool, tmp_path: Path):
    options = {"sampler": sampler, "windows": "inside", "folder": tmp_path}
    former = replay(**options)
    feed(former, 16)
    share = replay(**options)
    lost = ["priorities"] if prioritised else []
    waiting = [WAITING] if isinstance(sampler, dict) and sampler["_target_"] == "online" else []
    assert share.regroup([former.save()], 0, 2) == " and ".join([*lost, *waiting])
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
