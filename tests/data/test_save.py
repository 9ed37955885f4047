"""A replay that was saved and loaded goes on as if nothing had happened, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dreamlab.core.errors import CheckpointError
from dreamlab.data import chunks
from dreamlab.data.replay import Replay
from tests.data.streams import assert_same_future, assert_true_to_index, feed, replay, through_disk

SAMPLERS: list[Any] = [
    "uniform",
    "recency",
    "prioritised",
    {"_target_": "mixture", "uniform": 0.5, "prioritised": 0.3, "recency": 0.2},
]


def train(buffer: Replay, updates: int) -> None:
    """Draw, and write priorities and latents back."""
    for _ in range(updates):
        batch = buffer.sample()
        assert batch.index is not None
        buffer.update(
            batch.index,
            {"priority": batch.reward[:, 0] % 3, "latent": torch.cos(batch.extras["latent"])},
        )


def loaded(folder: Path, state: dict[str, Any], **options: Any) -> Replay:
    """Return a new replay in the same folder, come back to `state`."""
    buffer = replay(folder=folder, **options)
    buffer.load(through_disk(state, folder))
    return buffer


def content(buffer: Replay) -> dict[str, torch.Tensor]:
    assert buffer.store is not None
    names = {k: v.clone() for k, v in buffer.store.data.items()}
    return {**names, "episode": torch.from_numpy(buffer.episode.copy())}


def assert_same_content(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["uniform", "recency", "prioritised", "mixture"])
@pytest.mark.parametrize("ticks", [6, 33, 100])
def test_a_loaded_replay_has_the_same_future(sampler: Any, ticks: int, tmp_path: Path):
    options: dict[str, Any] = {"sampler": sampler, "windows": "transitions"}
    buffer = replay(folder=tmp_path, **options)
    feed(buffer, ticks)
    train(buffer, 3)
    other = loaded(tmp_path, buffer.save(), **options)
    assert_same_content(content(buffer), content(other))
    assert_same_future(buffer, other)


@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_write_backs_between_saves_survive(storage: str, tmp_path: Path):
    buffer = replay(folder=tmp_path, storage=storage, sampler="prioritised")
    state = buffer.save()
    for ticks in (15, 4, 0, 9, 0, 30):  # within the ring, around it, and standing still
        feed(buffer, ticks)
        train(buffer, 4)
        state = buffer.save()
    before = content(buffer)
    other = loaded(tmp_path, state, sampler="prioritised")
    assert_same_content(before, content(other))
    assert_same_future(buffer, other, ticks=5)


def test_bfloat16_survives(tmp_path: Path):
    buffer = replay(folder=tmp_path)
    feed(buffer, 25, dtype=torch.bfloat16)
    buffer.save()
    train(buffer, 2)
    other = loaded(tmp_path, buffer.save())
    assert content(other)["extras/latent"].dtype == torch.bfloat16
    assert_same_content(content(buffer), content(other))


def test_every_older_state_comes_back_though_newer_ones_were_written(tmp_path: Path):
    buffer = replay(folder=tmp_path, sampler="prioritised")
    states, contents = [], []
    for ticks in (10, 7, 0, 5, 0, 11):
        feed(buffer, ticks)
        train(buffer, 3)
        states.append(buffer.save())
        contents.append(content(buffer))
    for state, before in reversed(list(zip(states, contents, strict=True))):
        assert_same_content(before, content(loaded(tmp_path, state, sampler="prioritised")))


def test_a_run_that_goes_on_from_an_older_state_forgets_the_newer_one(tmp_path: Path):
    buffer = replay(folder=tmp_path)
    feed(buffer, 10)
    old = buffer.save()
    feed(buffer, 30)
    train(buffer, 3)
    buffer.save()
    again = loaded(tmp_path, old)
    feed(again, 3)
    state = again.save()
    other = loaded(tmp_path, state)
    assert other.added == 13
    assert_same_content(content(again), content(other))
    names = sorted(tmp_path.glob("*_*.pt"))
    assert [p.name.rpartition("_")[0] for p in names] == ["steps_0_10", "steps_10_13"]


def test_files_of_a_run_that_died_before_its_first_checkpoint_are_not_believed(tmp_path: Path):
    dead = replay(folder=tmp_path)
    feed(dead, 9)
    dead.save()
    feed(dead, 9)
    dead.save()
    buffer = replay(folder=tmp_path)
    feed(buffer, 12)
    assert buffer.store is not None
    buffer.store.data["reward"][:, :12] += 1  # another life than the dead one's
    other = loaded(tmp_path, buffer.save())
    assert_same_content(content(buffer), content(other))


def test_the_state_of_an_empty_replay_empties_it(tmp_path: Path):
    buffer = replay(folder=tmp_path, sampler="prioritised")
    empty = buffer.save()
    feed(buffer, 30)
    buffer.save()
    buffer.load(through_disk(empty, tmp_path))
    assert len(buffer) == 0
    assert not buffer.ready()
    fresh = replay(sampler="prioritised")
    for each in (buffer, fresh):
        feed(each, 30)
    assert_same_future(buffer, fresh, ticks=3)


def test_more_steps_than_fit_between_two_saves_leave_no_hole(tmp_path: Path):
    buffer = replay(folder=tmp_path)
    feed(buffer, 8)
    buffer.save()
    feed(buffer, 55)
    other = loaded(tmp_path, buffer.save())
    assert_same_content(content(buffer), content(other))
    assert_true_to_index(other.sample())


def test_a_large_save_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    buffer = replay(folder=tmp_path)
    feed(buffer, 20)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 500)  # 62 bytes a tick
    other = loaded(tmp_path, buffer.save())
    assert len(list(tmp_path.glob("steps_*.pt"))) == 3
    assert_same_content(content(buffer), content(other))


def test_a_missing_file_is_named(tmp_path: Path):
    buffer = replay(folder=tmp_path)
    for _ in range(3):
        feed(buffer, 5)
        state = buffer.save()
    file(tmp_path, "steps_5_10").unlink()
    with pytest.raises(CheckpointError, match="tick 5 to 15 are missing"):
        loaded(tmp_path, state)


def test_another_capacity_than_the_saved_one_is_refused(tmp_path: Path):
    buffer = replay(folder=tmp_path)
    feed(buffer, 30)
    with pytest.raises(CheckpointError, match="capacity of 40 steps, now 60"):
        loaded(tmp_path, buffer.save(), capacity=60)


def test_a_replay_without_a_folder_says_that_its_steps_are_lost():
    buffer = replay()
    feed(buffer, 5)
    with pytest.raises(CheckpointError, match="no folder"):
        replay().load(buffer.save())


# -- damage ------------------------------------------------------------------------------------


def file(folder: Path, stem: str) -> Path:
    (path,) = folder.glob(f"{stem}_*.pt")
    return path


def damaged(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(bytes(data))


def saved_twice(folder: Path) -> list[dict[str, Any]]:
    """Return the states of two saves: steps_0_10, then patch_2_15 and steps_10_15."""
    buffer = replay(folder=folder)
    feed(buffer, 10)
    states = [buffer.save()]
    train(buffer, 3)
    feed(buffer, 5)
    return [*states, buffer.save()]


@pytest.mark.parametrize("stem", ["steps_0_10", "steps_10_15", "patch_2_15"])
def test_a_flipped_bit_anywhere_in_a_file_is_noticed(stem: str, tmp_path: Path):
    state = saved_twice(tmp_path)[-1]
    path = file(tmp_path, stem)
    size = path.stat().st_size
    for place in {*range(0, size, size // 30), size - 1}:
        damaged(path, place, bit=place % 8)
        with pytest.raises(CheckpointError, match=f"{path.name} is corrupted"):
            loaded(tmp_path, state)
        damaged(path, place, bit=place % 8)
    loaded(tmp_path, state)


@pytest.mark.parametrize("stem", ["steps_0_10", "patch_2_15"])
@pytest.mark.parametrize("summed", [True, False], ids=["now", "before checksums"])
@pytest.mark.parametrize("left", [0, 100, -1])
def test_a_file_that_was_cut_short_is_named(left: int, summed: bool, stem: str, tmp_path: Path):
    state, path = saved_twice(tmp_path)[-1], file(tmp_path, stem)
    if not summed:
        path = path.rename(tmp_path / f"{stem}.pt")
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CheckpointError, match=f"{path.name} is corrupted"):
        loaded(tmp_path, state)


def test_files_without_a_checksum_are_read_as_before(tmp_path: Path):
    state = saved_twice(tmp_path)[-1]
    before = content(loaded(tmp_path, state))
    for path in tmp_path.glob("*_*.pt"):
        path.rename(tmp_path / f"{path.stem.rpartition('_')[0]}.pt")
    again = loaded(tmp_path, state)
    assert_same_content(content(again), before)
    feed(again, 5)
    train(again, 3)
    state = again.save()
    assert_same_content(content(loaded(tmp_path, state)), content(again))


def test_a_number_of_eight_digits_is_no_checksum(tmp_path: Path):
    payload = {"data": {}, "episode": torch.zeros(5, 1)}
    torch.save(payload, tmp_path / "steps_10000000_10000005.pt")
    ((first, _, _),) = chunks.ChunkFiles(tmp_path).read(10_000_000, 10_000_005)
    assert first == 10_000_000


def test_an_older_state_is_there_though_a_newer_one_was_loaded_and_back(tmp_path: Path):
    old, new = saved_twice(tmp_path)
    whole = content(loaded(tmp_path, new))
    assert loaded(tmp_path, old).added == 10
    assert_same_content(content(loaded(tmp_path, new)), whole)


def test_what_is_damaged_does_not_become_whole_when_a_patch_is_thinned(tmp_path: Path):
    buffer = replay(folder=tmp_path)
    feed(buffer, 20)
    buffer.save()
    train(buffer, 20)
    states = [buffer.save()]
    path = file(tmp_path, "patch_2_20")
    values = torch.load(path, weights_only=True)["extras/latent"]["values"]
    place = path.read_bytes().index(values.numpy().tobytes())
    damaged(path, place + values.nbytes - 2)
    feed(buffer, 12)  # most of what the patch is about is lost
    states = [*states, buffer.save()]
    feed(buffer, 2)
    states = [*states, buffer.save()]
    buffer.prune([_mark(s) for s in states[-1:]])
    assert path.exists()
    with pytest.raises(CheckpointError, match=f"{path.name} is corrupted"):
        loaded(tmp_path, states[-1])


# -- pruning -----------------------------------------------------------------------------------


def test_pruning_keeps_what_the_retained_states_need(tmp_path: Path):
    buffer = replay(folder=tmp_path, sampler="prioritised")
    states, contents = [], []
    for ticks in (6, 6, 6, 6, 0, 6, 6, 6, 0, 6):
        feed(buffer, ticks)
        train(buffer, 3)
        states.append(buffer.save())
        contents.append(content(buffer))
        buffer.prune([_mark(s) for s in states[-2:]])
    for state, before in zip(states[:-3:-1], contents[:-3:-1], strict=True):
        assert_same_content(before, content(loaded(tmp_path, state, sampler="prioritised")))


def test_pruning_bounds_the_files(tmp_path: Path):
    buffer = replay(folder=tmp_path)
    states, sizes = [], []
    for _ in range(60):
        feed(buffer, 5)
        train(buffer, 5)
        states.append(buffer.save())
        buffer.prune([_mark(s) for s in states[-2:]])
        sizes.append(sum(len(_ids(p)) for p in tmp_path.glob("patch_*.pt")))
    assert len(list(tmp_path.glob("steps_*.pt"))) <= 6  # 20 ticks and those of one more save
    assert max(sizes) <= 4 * 40  # half void at worst, and those of the newer states


def test_standing_still_does_not_pile_up_patches(tmp_path: Path):
    buffer = replay(folder=tmp_path)
    feed(buffer, 20)
    state = buffer.save()
    for _ in range(20):
        train(buffer, 20)
        previous, state = state, buffer.save()
        buffer.prune([_mark(previous), _mark(state)])
    assert len(list(tmp_path.glob("patch_*.pt"))) <= 4
    assert_same_content(content(buffer), content(loaded(tmp_path, state)))


def _mark(state: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint's meta file keeps of a state."""
    return {k: v for k, v in state.items() if isinstance(v, int)}


def _ids(path: Path) -> np.ndarray:
    return torch.load(path, weights_only=True)["extras/latent"]["ids"].numpy()
