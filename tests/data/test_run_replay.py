"""Another run's replay as a source: what it stored is drawn, and its folder is left as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dreamlab.core.config import load
from dreamlab.core.errors import CheckpointError, ConfigError
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.data.run_replay import RunReplay, RunReplayConfig
from dreamlab.data.source import BufferContext
from tests.data.streams import SPEC, assert_true_to_index, feed, flat, replay, through_disk

LATENT = {"latent": torch.zeros(1, 3)}


def stored(folder: Path, ticks: int = 15, **options: Any) -> Path:
    """Return the folder of a run with a saved replay."""
    made = replay(folder=folder / "buffers" / "replay", **options)
    feed(made, ticks)
    made.save()
    return folder


def source(run: Path, own: Path | None = None, extras: Any = LATENT, **options: Any) -> RunReplay:
    options = {"run": str(run), "capacity": 1_000, "batch": 8, "length": 4, **options}
    context = BufferContext(SPEC, 99, folder=own, extras=extras)
    return RunReplay(load(RunReplayConfig, options, "replay"), context)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_what_another_run_stored_is_drawn(tmp_path: Path):
    made = source(stored(tmp_path))
    assert len(made) == 30
    assert made.ready()
    for _ in range(20):
        assert_true_to_index(made.sample())
    assert made.sample(3).shape == (3, 4)


def test_only_the_newest_steps_are_read_where_room_is_short(tmp_path: Path):
    made = source(stored(tmp_path), capacity=20)
    assert len(made) == 20
    drawn = torch.cat([made.sample().obs["state"][..., 0] for _ in range(20)])
    assert (drawn.min(), drawn.max()) == (5, 14)


def test_it_tells_what_the_steps_look_like(tmp_path: Path):
    spec = Spec({"x": ArraySpec((4, 4, 3), "uint8")}, ArraySpec((2,), "int64", classes=(2, 3)))
    made = replay(folder=tmp_path / "buffers" / "replay")
    made.place = replace(made.place, spec=spec)
    feed(made, 15)
    made.save()
    config = load(RunReplayConfig, {"run": str(tmp_path)}, "replay")
    assert RunReplay.spec_of(config) == spec


@pytest.mark.parametrize("sampler", ["uniform", "prioritised", "recency", "mixture", "online"])
def test_it_comes_back_to_a_checkpoint_exactly(sampler: str, tmp_path: Path):
    run, before = stored(tmp_path / "run"), None
    whole, cut = (source(run, tmp_path / name, sampler=sampler, windows="inside") for name in "ab")

    def live(made: RunReplay, num: int) -> list[dict[str, torch.Tensor]]:
        out: list[dict[str, torch.Tensor]] = []
        for _ in range(num):
            out.append(flat(made.sample()))
            index = out[-1]["index"]
            made.update(index, {"latent": torch.sin(out[-1]["latent"] + 1)})
            made.update(index, {"priority": out[-1]["reward"][:, 0] % 5})
        return out

    before = files(run)
    live(whole, 5), live(cut, 5)
    state = through_disk(cut.save(), tmp_path)
    live(cut, 3)  # what comes after the checkpoint is forgotten
    again = source(run, tmp_path / "b", sampler=sampler, windows="inside")
    again.load(state)
    cut.load(state)
    for one, two, three in zip(live(whole, 6), live(again, 6), live(cut, 6), strict=True):
        for name in one:
            assert torch.equal(one[name], two[name]), name
            assert torch.equal(one[name], three[name]), name
    assert files(run) == before


def test_it_goes_on_with_the_steps_of_then_though_the_other_run_went_on(tmp_path: Path):
    run = tmp_path / "run"
    other = replay(folder=run / "buffers" / "replay", capacity=200)
    feed(other, 15)
    other.save()
    made = source(run, tmp_path / "a")
    state = through_disk(made.save(), tmp_path)
    feed(other, 15)
    other.save()
    again = source(run, tmp_path / "a")
    assert len(again) == 60
    again.load(state)
    assert len(again) == 30
    assert torch.equal(made.sample().reward, again.sample().reward)
    next((run / "buffers" / "replay").glob("steps_0_15_*.pt")).unlink()
    with pytest.raises(CheckpointError, match=r"steps_0_15_.* is missing"):
        source(run, tmp_path / "a").load(state)


def test_extras_that_were_not_stored_begin_as_zeros(tmp_path: Path):
    run = stored(tmp_path)
    more = {"latent": torch.zeros(1, 3), "deter": torch.zeros(1, 5, dtype=torch.bfloat16)}
    batch = source(run, extras=more).sample()
    assert batch.extras["deter"].dtype == torch.bfloat16
    assert (batch.extras["deter"] == 0).all()
    assert (batch.extras["latent"] != 0).any()
    other = {"latent": torch.zeros(1, 7)}  # a larger model's cannot be used
    assert (source(run, extras=other).sample().extras["latent"] == torch.zeros(7)).all()
    assert source(run, extras={}).sample().extras == {}


def test_what_does_not_fit_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="has no stored steps in its buffer 'replay'"):
        source(tmp_path)
    run = stored(tmp_path)
    with pytest.raises(ConfigError, match="no stored steps in its buffer 'other'"):
        source(run, buffer="other")
    with pytest.raises(ConfigError, match=r"replay\.run: is required"):
        load(RunReplayConfig, {}, "replay")
    options = {"run": str(run), "batch": 8, "length": 4}
    wide = Spec({"state": ArraySpec((3,))}, ArraySpec((1,)))
    with pytest.raises(ConfigError, match=r"observation 'state' is float32\[2\], here it is"):
        RunReplay(load(RunReplayConfig, options, "replay"), BufferContext(wide, 1))
    (run / "buffers" / "replay" / "spec.json").unlink()
    with pytest.raises(ConfigError, match="was written by an older version"):
        source(run)
