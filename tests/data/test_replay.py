"""What comes out of a replay: whole windows, right flags, and nothing that was overwritten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.types import Batch, Decision, Step
from dreamlab.data.storage import StepArrays, choose
from tests.data.streams import assert_true_to_index, decision_at, drawn, feed, flat, replay, step_at


@pytest.mark.parametrize("storage", ["auto", "ram", "pinned", "gpu", "disk"])
@pytest.mark.parametrize("ticks", [6, 20, 21, 137])
def test_every_window_is_true_to_its_index(storage: str, ticks: int, tmp_path: Path):
    buffer = replay(storage=storage, folder=tmp_path)
    feed(buffer, ticks)
    for _ in range(20):
        batch = buffer.sample()
        assert_true_to_index(batch)
        assert batch.index is not None
        assert batch.index.min() >= max(0, ticks - 20) * 2
        assert batch.index.max() < ticks * 2


def test_all_windows_that_exist_are_drawn_also_after_the_ring_wrapped():
    buffer = replay()
    feed(buffer, 47)  # ticks 27..46 are stored; a window of 4 starts at 27..43
    assert set(drawn(buffer, 100)) == set(range(27 * 2, 44 * 2))


def test_first_step_of_a_window_is_first_and_seams_are_closed():
    buffer = replay(length=9)
    feed(buffer, 20)
    batch = buffer.sample()
    assert batch.is_first[:, 0].all()
    assert batch.is_last[:, :-1].equal(batch.is_first[:, 1:])


def test_an_abandoned_episode_ends_before_the_next_begins():
    buffer = replay(num_envs=1, batch=64, length=2)
    for tick in range(10):
        step = step_at(tick, 1, episode=100)
        buffer.add(
            Step(step.obs, step.reward, np.array([tick == 5]), step.is_last, step.is_terminal),
            decision_at(tick, 1),
        )
    batch = buffer.sample()
    before_seam = batch.obs["state"][:, 0, 0] == 4
    assert before_seam.any()
    assert batch.is_last[:, 0].equal(before_seam)
    assert not batch.is_terminal.any()


@pytest.mark.parametrize("sampler", ["uniform", "recency", "prioritised"])
def test_windows_inside_never_hold_a_seam(sampler: str):
    buffer = replay(windows="inside", sampler=sampler)
    feed(buffer, 50)
    for _ in range(30):
        batch = buffer.sample()
        assert_true_to_index(batch)
        assert not batch.is_first[:, 1:].any()


@pytest.mark.parametrize("sampler", ["uniform", "recency", "prioritised"])
def test_transitions_start_with_a_step_that_has_a_successor(sampler: str):
    buffer = replay(windows="transitions", sampler=sampler)
    feed(buffer, 50)
    seams = 0
    for _ in range(30):
        batch = buffer.sample()
        assert_true_to_index(batch)
        assert not batch.is_first[:, 1].any()
        seams += int(batch.is_first[:, 2:].sum())
    assert seams > 0


@pytest.mark.parametrize("sampler", ["uniform", "recency", "prioritised"])
def test_the_only_valid_window_among_many_is_found(sampler: str):
    buffer = replay(num_envs=1, capacity=4000, windows="inside", sampler=sampler)
    feed(buffer, 3000, episode=2)
    assert not buffer.ready()
    with pytest.raises(LabError, match="shorter than the window"):
        buffer.sample()
    feed(buffer, 2, episode=10_000)  # the episode that began at 2998 lasts until 3001
    assert buffer.ready()
    feed(buffer, 900, episode=2)
    assert set(drawn(buffer, 3)) == {2998}


def test_a_replay_is_not_ready_until_a_window_and_min_steps_are_there():
    buffer = replay(min_steps=30)
    assert not buffer.ready()
    feed(buffer, 14)
    assert not buffer.ready()
    feed(buffer, 1)
    assert buffer.ready()


def test_a_full_replay_is_ready_even_if_its_capacity_was_rounded_below_min_steps():
    buffer = replay(num_envs=3, capacity=32, min_steps=32)  # 10 ticks of 3 environments
    feed(buffer, 10)
    assert buffer.ready()


def test_max_bytes_bounds_the_memory():
    # per tick of two environments: state 16, action 8, reward 8, flags 6, extras 24, episode 16
    buffer = replay(capacity=1_000_000, max_bytes=78 * 10 + 5)
    feed(buffer, 50)
    assert buffer.ticks == 10
    assert buffer.nbytes() == 780
    assert len(buffer) == 20
    assert_true_to_index(buffer.sample())


def test_max_bytes_below_one_window_is_refused():
    with pytest.raises(ConfigError, match="one window takes 390"):
        feed(replay(max_bytes=300), 1)


def test_the_same_seed_draws_the_same_batches():
    one, two = replay(sampler="recency"), replay(sampler="recency")
    for buffer in (one, two):
        feed(buffer, 33)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(*map(_tensors, (one, two)), strict=True))


def _tensors(buffer):
    return flat(buffer.sample()).values()


def test_a_batch_is_valid_until_the_next_one_whatever_is_stored_meanwhile():
    buffer = replay()
    feed(buffer, 20)
    batch = buffer.sample()
    before = flat(batch)
    feed(buffer, 40)
    assert all(torch.equal(v, before[k]) for k, v in flat(batch).items())


# -- writing back ------------------------------------------------------------------------------


def test_extras_written_back_come_out_of_later_batches():
    buffer = replay(batch=64)
    feed(buffer, 20)
    index = torch.tensor([[10, 12], [11, 13]])
    buffer.update(index, {"latent": torch.arange(12.0).view(2, 2, 3)})
    batch = buffer.sample()
    assert batch.index is not None
    for step, first in ((10, 0.0), (12, 3.0), (11, 6.0), (13, 9.0)):
        latent = batch.extras["latent"][batch.index == step]
        assert len(latent) > 0
        assert (latent == first + torch.arange(3.0)).all()
    others = ~torch.isin(batch.index, index)
    assert (batch.extras["latent"][others][:, 0] == -batch.index[others]).all()


def test_write_backs_to_overwritten_steps_are_ignored():
    buffer = replay()
    feed(buffer, 20)
    index = torch.tensor([[0, 2, 4], [8, 10, 12]])
    feed(buffer, 3)  # ticks 0, 1, 2 are gone: ids 0 to 5
    buffer.update(index, {"latent": torch.full((2, 3, 3), 99.0)})
    rows = buffer.read(torch.arange(6, 46)[None])["extras/latent"][0, :, 0]
    changed = torch.arange(6, 46)[rows == 99]
    assert changed.tolist() == [8, 10, 12]


def test_of_a_step_that_is_in_the_batch_twice_the_last_value_stays():
    buffer = replay()
    feed(buffer, 20)
    index = torch.tensor([[4, 6, 8], [6, 8, 10]])
    buffer.update(index, {"latent": torch.arange(1.0, 7.0).view(2, 3, 1).expand(2, 3, 3)})
    rows = buffer.read(torch.tensor([[4, 6, 8, 10]]))["extras/latent"][0, :, 0]
    assert rows.tolist() == [1, 4, 5, 6]


def test_bfloat16_extras_are_stored_written_back_and_returned():
    buffer = replay()
    feed(buffer, 20, dtype=torch.bfloat16)
    batch = buffer.sample()
    assert batch.index is not None
    assert batch.extras["latent"].dtype == torch.bfloat16
    assert (batch.extras["latent"][..., 0] == -batch.index).all()
    buffer.update(batch.index[:1], {"latent": torch.full((1, 4, 3), 0.5)})
    assert (buffer.read(batch.index[:1])["extras/latent"] == 0.5).all()


def test_extras_are_stored_in_the_type_they_first_had():
    buffer = replay()
    feed(buffer, 10)
    feed(buffer, 10, dtype=torch.bfloat16)
    rows = buffer.read(torch.arange(40)[None])["extras/latent"][0, :, 0]
    assert rows.dtype == torch.float32
    assert (rows == -torch.arange(40.0)).all()


def test_a_misspelt_extra_is_an_error_that_names_the_nearest():
    buffer = replay()
    feed(buffer, 20)
    with pytest.raises(ConfigError, match="Did you mean 'latent'"):
        buffer.update(torch.zeros(1, 1, dtype=torch.int64), {"latents": torch.zeros(1, 1, 3)})


def test_extras_that_come_and_go_are_refused():
    buffer = replay()
    feed(buffer, 2)
    with pytest.raises(ConfigError, match="extras/latent"):
        buffer.add(step_at(2), Decision(torch.zeros(2, 1)))


def test_nothing_stored_holds_on_to_a_gradient_graph():
    buffer = replay()
    weight = torch.ones(2, 3, requires_grad=True)
    buffer.add(step_at(0), Decision(torch.zeros(2, 1), extras={"latent": weight * 2}))
    assert isinstance(buffer.store, StepArrays)
    assert not any(v.requires_grad for v in buffer.store.data.values())


# -- where it lives ----------------------------------------------------------------------------


def _anonymous_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_storage_on_disk_leaves_the_memory_to_others(tmp_path: Path):
    buffer = replay(num_envs=1, capacity=200, storage="disk", folder=tmp_path)
    step = step_at(0, 1)
    picture = np.ones((1, 2**20), np.uint8)  # 1 MB a step, 200 MB when full
    before = _anonymous_mb()
    for tick in range(250):
        picture[:] = tick % 256
        obs = {"image": picture}
        flags = (step.is_first, step.is_last, step.is_terminal)
        buffer.add(Step(obs, step.reward, *flags), decision_at(tick, 1))
    batch = buffer.sample()
    assert _anonymous_mb() - before < 60  # the batch of 32 steps, and little else
    buffer.save()
    assert _anonymous_mb() - before < 60 + 300  # a piece of the save at a time
    assert batch.index is not None
    assert (batch.obs["image"][..., 0] == batch.index % 256).all()


def test_storage_on_disk_without_a_folder_is_refused():
    with pytest.raises(ConfigError, match="needs a run directory"):
        feed(replay(storage="disk"), 1)


def test_storage_is_chosen_by_what_the_gpu_has_free(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert choose("auto", 400, gpu) == "gpu"
    assert choose("auto", 401, gpu) == "ram"
    assert choose("auto", 1, cpu) == "ram"
    assert choose("pinned", 1, gpu) == "pinned"


@pytest.mark.gpu
@pytest.mark.parametrize("storage", ["auto", "ram", "pinned", "gpu"])
def test_the_loop_never_waits_for_the_gpu(storage: str):
    from dataclasses import replace

    buffer = replay(storage=storage)
    buffer.place = replace(buffer.place, device="cuda")
    feed(buffer, 25)
    assert buffer.store is not None
    assert buffer.store.on_gpu == (storage in ("auto", "gpu"))
    for _ in range(3):
        buffer.sample()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch: Batch = buffer.sample()
        feed(buffer, 1)
        if buffer.store.on_gpu:  # elsewhere the host must have the values before it stores them
            assert batch.index is not None
            buffer.update(batch.index, {"latent": batch.extras["latent"] * 2})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_true_to_index(buffer.sample().to("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("storage", ["ram", "pinned", "gpu"])
def test_batches_on_the_gpu_are_not_overwritten_by_the_next_gather(storage: str):
    from dataclasses import replace

    buffer = replay(storage=storage, batch=256)
    buffer.place = replace(buffer.place, device="cuda")
    feed(buffer, 25)
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        for _ in range(4):
            busy = (busy @ busy).tanh()  # the copies queue up behind this
        batch = buffer.sample()
        sums = [batch.reward.sum(), batch.index.sum() if batch.index is not None else 0]
        if storage == "gpu":
            continue  # its batches are valid until the next one, in the order of the stream
        buffer.sample()
        assert float(sums[0]) == float(sums[1])
