"""Batches from several sources: shares are kept, and what is written back finds its way home."""

from __future__ import annotations

import pytest
import torch

from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.data.mix import Mix, draws, source_of, split_rows
from tests.data.streams import Replay, feed, replay


def two(**options: object) -> dict[str, Replay]:
    """Return two replays whose steps differ: those of the second were stored later."""
    made = {"old": replay(**options), "new": replay(**options)}
    feed(made["old"], 12)
    made["new"].added = 100
    feed(made["new"], 12)
    return made


@pytest.mark.parametrize(
    ("shares", "rows", "expected"),
    [
        ({"a": 0.5, "b": 0.5}, 16, {"a": 8, "b": 8}),
        ({"a": 3, "b": 1}, 16, {"a": 12, "b": 4}),
        ({"a": 1, "b": 1, "c": 1}, 16, {"a": 6, "b": 5, "c": 5}),
        ({"a": 0.9, "b": 0.1}, 4, {"a": 4, "b": 0}),
    ],
)
def test_every_row_of_a_batch_has_a_source(shares, rows, expected):
    assert split_rows(shares, rows) == expected


def test_a_batch_holds_each_source_by_its_share():
    sources = two(batch=8)
    batch = Mix(sources, {"old": 3.0, "new": 1.0}).sample()
    assert batch.shape == (8, 4)
    ticks = batch.obs["state"][:, 0, 0]
    assert (ticks[:6] < 12).all()
    assert (ticks[6:] >= 100).all()


def test_extras_go_back_to_where_they_came_from():
    sources = two(batch=8)
    mix = Mix(sources, {"old": 1.0, "new": 1.0})
    batch = mix.sample()
    assert batch.index is not None
    mark = torch.arange(8.0)[:, None, None].expand(8, 4, 3)
    mix.update(batch.index, {"latent": mark})
    for name, rows in (("old", slice(0, 4)), ("new", slice(4, 8))):
        store = sources[name]
        read = store.read(batch.index[rows])["extras/latent"]
        assert {float(x) for x in read.unique()} <= set(range(rows.start, rows.stop))


def test_a_mix_is_ready_when_every_source_is():
    sources = {"old": replay(), "new": replay()}
    feed(sources["old"], 12)
    mix = Mix(sources, {"old": 1.0, "new": 1.0})
    assert not mix.ready()
    feed(sources["new"], 12)
    assert mix.ready()


def test_weights_of_one_source_are_ones_in_the_other():
    sources = {"old": replay(sampler="prioritised"), "new": replay()}
    for source in sources.values():
        feed(source, 12)
    weight = Mix(sources, {"old": 1.0, "new": 1.0}).sample().extras["weight"]
    assert (weight[4:] == 1).all()
    assert weight.shape == (8,)


def test_sources_that_store_other_things_are_told_apart():
    sources = two()
    feed(sources["new"], 20, dtype=torch.float32)
    sources["new"].store = None
    sources["new"].added = 0
    feed(sources["new"], 12, dtype=torch.bfloat16)
    mix = Mix(sources, {"old": 1.0, "new": 1.0})
    with pytest.raises(
        ConfigError,
        match=r"'old' and 'new' cannot be mixed in a batch: extra latent is float32\[4, 3\]",
    ):
        mix.sample()


def test_a_share_of_no_row_is_refused():
    with pytest.raises(ConfigError, match="'new' has a share of less than one of the 8 windows"):
        Mix(two(), {"old": 100.0, "new": 1.0})


def test_a_phase_names_one_buffer_or_a_mix():
    sources = two()
    one = Phase("a", ("update_x",), buffer="new")
    assert source_of(one, sources) is sources["new"]
    both = Phase("b", ("collect", "update_x"), buffer="new", sources={"old": 1.0, "new": 1.0})
    assert isinstance(source_of(both, sources), Mix)
    assert source_of(Phase("exam", ("evaluate",)), {}) is None


def test_a_hook_that_draws_in_proportion_has_a_batch_of_its_own():
    sources = {"old": replay(capacity=200, batch=8), "new": replay(capacity=200, batch=8)}
    feed(sources["old"], 45)
    feed(sources["new"], 15)
    phase = Phase(
        "b", ("update_a", "update_b", "update_c"), buffer="new",
        sources={"old": 1.0, "new": 1.0}, proportional=("update_b",),
    )  # fmt: skip
    mix = source_of(phase, sources)
    assert mix is not None
    found = {name: (batch, origin) for name, batch, origin in draws(mix, phase)}
    assert list(found) == ["update_a", "update_b", "update_c"]
    assert found["update_a"][0] is found["update_c"][0]
    own = found["update_b"][1]
    assert isinstance(own, Mix)
    assert own.counts == {"old": 6, "new": 2}
    assert found["update_b"][0].shape[0] == found["update_a"][0].shape[0] == 8
    feed(sources["new"], 30)
    assert mix.by_size().counts == {"old": 4, "new": 4}


def test_a_source_with_next_to_nothing_gets_nothing():
    sources = {"old": replay(capacity=200, batch=8), "new": replay(capacity=200, batch=8)}
    feed(sources["old"], 100)
    feed(sources["new"], 6)
    assert Mix(sources, {"old": 1.0, "new": 1.0}).by_size().counts == {"old": 8}
