"""A data set as a source: windows of its steps, normalised, resumed to the sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from dreamlab.core.config import load
from dreamlab.core.errors import CheckpointError, ConfigError
from dreamlab.core.files import CACHE
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.data.dataset_source import DatasetConfig, DatasetSource
from dreamlab.data.datasets.table import DataError
from dreamlab.data.mix import join
from dreamlab.data.source import BufferContext
from tests.data.sets import CAMERA, LENGTHS, shade, write_v2, write_v3
from tests.data.streams import flat, through_disk

STATE = "observation.state"
LATENT = {"latent": torch.zeros(1, 3)}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


def configured(path: Path, **options: Any) -> DatasetConfig:
    return load(DatasetConfig, {"path": str(path), "batch": 8, **options}, "demos")


def source(
    path: Path, own: Path | None = None, spec: Spec | None = None, extras: Any = None,
    **options: Any,
) -> DatasetSource:  # fmt: skip
    config = configured(path, **options)
    spec = spec or DatasetSource.spec_of(config)
    return DatasetSource(config, BufferContext(spec, 99, 3, folder=own, extras=extras or {}))


def test_steps_obey_the_step_convention(tmp_path: Path):
    made = source(write_v3(tmp_path / "set"), length=6, batch=3)
    batches = [made.sample(1).map(torch.clone) for _ in range(4)]
    drawn = {int(b.obs["state"][0, 0, 0]): b for b in batches}
    batch = drawn[0]  # the episode of five frames has six steps
    assert batch.obs["state"][0, :, 0].tolist() == [0, 1, 2, 3, 4, 4]
    assert torch.allclose(batch.action[0, :, 0], torch.tensor([0, 1, 2, 3, 4, 4]) / 200)
    assert batch.reward[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.is_first[0].tolist() == [True] + [False] * 5
    assert batch.is_last[0].tolist() == [False] * 5 + [True]
    assert batch.is_terminal[0].tolist() == [False] * 5 + [True]
    assert sorted(drawn) == [0, 100, 101, 102]  # windows stay inside; the last episode is too short
    assert "1 of 3 episodes are shorter" in made.notes[0]


def test_every_window_is_drawn_once_per_pass(tmp_path: Path):
    made = source(write_v3(tmp_path / "set"), pad="edge", batch=5)
    drawn = [made.sample(8).obs["state"][:, 0, 0].tolist() for _ in range(4)]
    states = [drawn[0] + drawn[1], drawn[2] + drawn[3]]
    assert sorted(states[0]) == sorted(states[1])
    assert len(set(states[0])) == 16
    assert states[0] != states[1]


def test_padding_repeats_the_edges(tmp_path: Path):
    made = source(write_v3(tmp_path / "set"), before=2, after=3, pad="edge", batch=16)
    batch = made.sample()
    rows = {int(x): i for i, x in enumerate(batch.obs["state"][:, 2, 0])}
    start, end = rows[0], rows[4]  # the drawn frame is at place `before`
    assert batch.obs["state"][start, :, 0].tolist() == [0, 0, 0, 1, 2, 3]
    assert batch.extras["pad"][start].tolist() == [True, True, False, False, False, False]
    assert batch.obs["state"][end, :, 0].tolist() == [2, 3, 4, 4, 4, 4]
    assert torch.equal(batch.action[end, :, 0] * 200, torch.tensor([2.0, 3, 4, 4, 4, 4]))
    assert batch.extras["pad"][end].tolist() == [False, False, False, True, True, True]
    assert batch.reward[end].tolist() == [2, 3, 4, 5, 0, 0]  # the last reward counts once
    assert batch.is_terminal[end].tolist() == [False] * 3 + [True] * 3
    assert not batch.is_last[start].any()


@pytest.mark.parametrize(("most", "num"), [(None, 20), (7, 13), (0, 6), (14, 20)])
def test_padding_after_an_episode_can_be_limited(most: int | None, num: int, tmp_path: Path):
    """Diffusion policy: 16 actions from the step before on, at most 7 of them after the end."""
    folder = write_v3(tmp_path / "set", lengths=(20, 4))
    made = source(folder, before=1, after=14, pad="edge", pad_after=most)
    short = 4 if most in (None, 14) else 0  # frames of the short episode
    assert sum("1 of 2 episodes are shorter" in n for n in made.notes) == (short == 0)
    batch = made.sample(num + short)
    now = batch.obs["state"][:, 1, 0]
    assert sorted(now[now < 100].tolist()) == list(range(num))
    ends = batch.extras["pad"][now == num - 1]
    assert int(ends[:, 2:].sum()) == (14 if most is None else most)


@pytest.mark.parametrize(("windows", "starts"), [("across", 17), ("transitions", 14)])
def test_windows_lie_where_a_replays_would(windows: str, starts: int, tmp_path: Path):
    made = source(write_v3(tmp_path / "set"), length=3, windows=windows)
    batch = made.sample(starts)
    assert len({int(x) for x in batch.index[:, 0]}) == starts
    seams = batch.is_first[:, 1:]
    assert seams.any()
    assert (batch.is_last[:, :-1] >= seams).all()
    if windows == "transitions":
        assert not seams[:, 0].any()


@pytest.mark.parametrize("kind", ["video", "image"])
def test_a_step_shows_its_own_picture(kind: str, tmp_path: Path):
    made = source(write_v3(tmp_path / "set", kind), before=1, after=1, pad="edge", size=[16, 24])
    for _ in range(4):
        batch = made.sample()
        assert batch.obs["cam"].shape == (8, 3, 16, 24, 3)
        assert batch.obs["cam"].dtype == torch.uint8
        for state, picture in zip(
            batch.obs["state"].flatten(0, 1), batch.obs["cam"].flatten(0, 1), strict=True
        ):
            episode, frame = int(state[1]), int(state[0] - 100 * state[1])
            assert abs(picture.float().mean() - shade(episode, frame)) < 2


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "quantiles", "bounds"])
def test_normalisation_can_be_undone(mode: str, tmp_path: Path):
    folder = write_v3(tmp_path / "set", lengths=(50, 60))
    plain = source(folder, pad="edge", sampler="uniform").sample(32)
    made = source(folder, pad="edge", sampler="uniform", normalize={"action": mode})
    batch, affine = made.sample(32), made.scaling["action"]
    edges = affine.invert(np.array([-np.inf, np.inf] if mode == "mean_std" else [-1, 1]))
    wanted = np.clip(plain.action.numpy(), *edges)
    assert np.allclose(affine.invert(batch.action.numpy()), wanted, atol=1e-5)
    assert torch.equal(plain.obs["state"], batch.obs["state"])
    action = DatasetSource.spec_of(made.config).action
    assert (action.low, action.high) == ((None, None) if mode == "mean_std" else (-1, 1))
    whole = made.store.data["action"][0, :, 0].numpy()
    frames = made.steps.arrays["is_last"] == 0
    if mode in ("min_max", "quantiles"):
        assert (whole.min(), whole.max()) == (-1, 1)
    if mode == "mean_std":
        assert abs(whole[frames].mean()) < 1e-5
        assert abs(whole[frames].std() - 1) < 1e-5
    if mode == "bounds":
        assert np.allclose(whole, made.steps.arrays["action"][:, 0] / 2)


def test_a_missing_statistic_is_named(tmp_path: Path):
    old = write_v2(tmp_path / "set")
    options = {"keys": {"state": "observation.state"}, "statistics": "stored"}
    assert source(old, normalize={"state": "min_max"}, **options).scaling
    with pytest.raises(DataError, match="quantiles needs the statistic 'q01' of 'state'"):
        source(old, normalize={"state": "quantiles"}, **options)
    with pytest.raises(DataError, match=r"no observation 'stat'\. Did you mean 'state'"):
        source(old, normalize={"stat": "min_max"})
    with pytest.raises(DataError, match=r"normalize\.cam: images are kept as bytes"):
        source(old, normalize={"cam": "min_max"})
    with pytest.raises(DataError, match=r"no low and high of 'action'"):
        source(old, normalize={"action": "bounds"})


def test_returns_to_go(tmp_path: Path):
    batch = source(write_v3(tmp_path / "set"), length=5, mc_gamma=0.5, batch=6).sample(6)
    at = (batch.obs["state"][:, 0, 0] == 200).nonzero()[0, 0]  # four frames, rewards 1 2 3 4
    wanted = [1 + 0.5 * (2 + 0.5 * (3 + 0.5 * 4)), 2 + 0.5 * (3 + 0.5 * 4), 3 + 0.5 * 4, 4, 0]
    assert batch.extras["mc_return"][at].tolist() == wanted


def test_a_failure_counts_as_if_it_went_on_forever(tmp_path: Path):
    folder = tmp_path / "demos.hdf5"
    rewards = ([-1, -1, -1], [-1, 0, -1], [-1, -1, 0])  # only the first never succeeds
    with h5py.File(folder, "w") as file:
        for i, reward in enumerate(rewards):
            file[f"data/demo_{i}/actions"] = np.zeros((3, 1))
            file[f"data/demo_{i}/obs/state"] = np.zeros((3, 1))
            file[f"data/demo_{i}/rewards"] = np.array(reward, np.float32)
    options = {"length": 4, "mc_gamma": 0.5, "batch": 3}
    for failure, first in ((None, [-1.75, -1.5, -1, 0]), (-1, [-2.0] * 4), (-7, None)):
        made = source(folder, mc_failure_reward=failure, **options)
        found = made.store.data["extras/mc_return"].view(3, 4).tolist()
        assert found[0] == (first or [-1.75, -1.5, -1, 0])
        assert found[1:] == [[-1.25, -0.5, -1, 0], [-1.5, -1, 0, 0]]
        assert any("no reward is mc_failure_reward=-7" in n for n in made.notes) == (failure == -7)
    for gamma in (None, 1.0):
        with pytest.raises(ConfigError, match=r"mc_failure_reward=-1: .* set mc_gamma, below 1"):
            configured(folder, mc_failure_reward=-1, mc_gamma=gamma)


def test_what_ends_an_episode_can_be_chosen(tmp_path: Path):
    folder = write_v3(tmp_path / "set")
    ends = {k: source(folder, ends=k).steps.arrays["is_terminal"] for k in ("done", "never")}
    assert np.flatnonzero(ends["done"]).tolist() == [5, 13, 18]
    assert not ends["never"].any()
    success = source(folder, ends="success").steps.arrays["is_terminal"]
    assert np.flatnonzero(success).tolist() == [5, 18]
    bare = write_v3(tmp_path / "bare", without=("next.success", "next.reward"))
    with pytest.raises(DataError, match=r"no feature 'next\.success'"):
        source(bare, ends="success")
    assert "it has no next.reward" in source(bare).notes[0]


def test_a_task_is_an_observation_where_asked(tmp_path: Path):
    made = source(write_v3(tmp_path / "set"), task=True, pad="edge")
    batch = made.sample(16)
    assert torch.equal(batch.obs["task"], (batch.obs["state"][..., 1] % 2).long())
    spec = DatasetSource.spec_of(made.config)
    assert spec.obs["task"] == ArraySpec((), "int64", classes=2)
    assert [t.name for t in spec.tasks] == ["task 0", "task 1"]


# -- exact resume ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "prioritised", "passes", "episodes"])
@pytest.mark.parametrize("pad", ["none", "edge"])
def test_it_comes_back_to_a_checkpoint_exactly(sampler: str, pad: str, tmp_path: Path):
    folder = write_v3(tmp_path / "set", "image")
    options = {"sampler": sampler, "pad": pad, "batch": 5, "after": 2}

    def build(name: str) -> DatasetSource:
        return source(folder, tmp_path / name, extras=LATENT, **options)

    def live(made: DatasetSource, num: int) -> list[dict[str, torch.Tensor]]:
        out: list[dict[str, torch.Tensor]] = []
        for _ in range(num):
            out.append(flat(made.sample()))
            made.update(out[-1]["index"], {"latent": torch.sin(out[-1]["latent"] + 1)})
            made.update(out[-1]["index"], {"priority": out[-1]["reward"][:, 0] % 5})
        return out

    whole, cut = build("a"), build("b")
    live(whole, 5), live(cut, 5)
    state = through_disk(cut.save(), tmp_path)
    live(cut, 3)  # what comes after the checkpoint is forgotten
    again = build("b")
    again.load(state)
    cut.load(state)
    for one, two, three in zip(live(whole, 6), live(again, 6), live(cut, 6), strict=True):
        for name in one:
            assert torch.equal(one[name], two[name]), name
            assert torch.equal(one[name], three[name]), name


@pytest.mark.parametrize("sampler", ["shuffled", "episodes"])
def test_what_is_drawn_ahead_changes_nothing(sampler: str, tmp_path: Path):
    folder = write_v3(tmp_path / "set", "image")
    ahead, plain = (
        source(folder, pad="edge", after=2, sampler=sampler, prefetch=p) for p in (True, False)
    )
    for rows in (3, 3, 5, 2, None, 7, 7):
        one, two = (flat(s.sample(rows)) for s in (ahead, plain))
        assert all(torch.equal(one[k], two[k]) for k in one)
        ahead.peek(0, 4)
        assert ahead.ahead is not None
    states = [through_disk(s.save()["sampler"], tmp_path) for s in (ahead, plain)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_a_set_that_has_changed_cannot_go_on(tmp_path: Path):
    state = source(write_v3(tmp_path / "set")).save()
    other = source(write_v3(tmp_path / "other", lengths=(5, 7, 5)))
    with pytest.raises(CheckpointError, match="has changed since the checkpoint"):
        other.load(state)


def test_mixed_batches_say_what_only_some_sources_know(tmp_path: Path):
    demos = source(write_v3(tmp_path / "set"), after=3, pad="edge", mc_gamma=0.9)
    made = demos.sample(8).map(torch.clone)
    other = replace(made, extras={})  # as of a replay that knows of neither
    batch = join({"demos": made, "replay": other}).map(lambda x: torch.cat([x[:4], x[8:12]]))
    assert batch.extras["mc_return"][:4].isfinite().all()
    assert (batch.extras["mc_return"][4:] == -torch.inf).all()
    assert batch.extras["pad"].dtype == torch.bool
    assert not batch.extras["pad"][4:].any()


# -- what does not fit ----------------------------------------------------------------------------


def test_a_mismatch_with_the_environment_names_the_key(tmp_path: Path):
    folder = write_v3(tmp_path / "set")
    action = ArraySpec((1,), low=-2.0, high=2.0)
    wide = Spec({"state": ArraySpec((3,))}, action)
    with pytest.raises(ConfigError, match=r"'state' is float32\[2\], here it is float32\[3\]"):
        source(folder, spec=wide)
    other = Spec({"position": ArraySpec((2,))}, action)
    with pytest.raises(ConfigError, match=r"no observation 'position'[^$]*known: state"):
        source(folder, spec=other)
    named = source(folder, spec=other, keys={"position": "observation.state"})
    assert list(named.sample().obs) == ["position"]
    discrete = Spec({"state": ArraySpec((2,))}, ArraySpec((), "int64", classes=2))
    with pytest.raises(ConfigError, match=r"its action is float32\[1\], here it is int64\[\] of 2"):
        source(folder, spec=discrete)
    narrow = Spec({"state": ArraySpec((2,))}, ArraySpec((1,), low=-1.0, high=1.0))
    with pytest.raises(ConfigError, match=r"range from 0 to 1\.015, those of the run from -1 to 1"):
        source(folder, spec=narrow)


def test_only_what_the_environment_shows_is_given(tmp_path: Path):
    folder = write_v3(tmp_path / "set", "video")
    spec = Spec({"state": ArraySpec((2,))}, ArraySpec((1,), low=-2.0, high=2.0))
    made = source(folder, spec=spec)
    assert list(made.sample().obs) == ["state"]
    assert not (tmp_path / "cache" / "frames").exists()  # nothing was decoded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": True}, r"task: there is no observation 'task'.*remove task from"),
        ({"keys": {"state": STATE, "cam": CAMERA}}, r"keys\.cam: there is no obs"),
        (
            {"keys": {"state": STATE, "far": "action"}, "normalize": {"far": "bounds"}},
            r"no observation 'far'.*known: state.*remove keys\.far",
        ),
    ],
)  # fmt: skip
def test_what_is_requested_but_not_there_is_named(options: Any, message: str, tmp_path: Path):
    folder = write_v3(tmp_path / "set", "image")
    spec = Spec({"state": ArraySpec((2,))}, ArraySpec((1,), low=-2.0, high=2.0))
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        source(folder, spec=spec, **options)


def test_a_normalization_of_what_is_not_there_is_named(tmp_path: Path):
    folder = write_v3(tmp_path / "set")
    action = ArraySpec((1,), low=-2.0, high=2.0)
    spec, keys = Spec({"position": ArraySpec((2,))}, action), {"position": "observation.state"}
    for mode in ("min_max", "none"):
        with pytest.raises(DataError, match=r"normalize: there is no observation 'state'"):
            source(folder, spec=spec, keys=keys, normalize={"state": mode})
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for name in ("actions", "obs/state", "obs/force"):
            file[f"data/demo_0/{name}"] = np.arange(3.0)[:, None]
    spec = Spec({"state": ArraySpec((1,))}, ArraySpec((1,)))
    assert list(source(tmp_path / "demos.hdf5", spec=spec).sample().obs) == ["state"]
    made = source(tmp_path / "demos.hdf5", spec=spec, normalize={"force": "none"})
    assert list(made.sample().obs) == ["state"]
    with pytest.raises(ConfigError, match=r"normalize\.force: there is no observation 'force'"):
        source(tmp_path / "demos.hdf5", spec=spec, normalize={"force": "min_max"})


def test_windows_that_cannot_be_are_refused(tmp_path: Path):
    folder = write_v3(tmp_path / "set")
    with pytest.raises(ConfigError, match="pad_after=3: windows are only padded with pad=edge"):
        configured(folder, pad_after=3)
    with pytest.raises(DataError, match=r"the longest episode has 8\. Use more pad_after, or"):
        source(folder, after=9, pad="edge", pad_after=2)
    with pytest.raises(DataError, match="no window of 9 steps fits: the longest episode has 8"):
        source(folder, length=9)
    with pytest.raises(ConfigError, match="either length, or before and after"):
        configured(folder, length=4, after=1)
    with pytest.raises(ConfigError, match="pad=edge: windows stay inside"):
        configured(folder, pad="edge", windows="across")
    with pytest.raises(DataError, match="it has 3 episodes, not 4"):
        source(folder, episodes=4)
    assert len(source(folder, episodes=1)) == 6


def test_damage_is_refused_or_left_out_and_said(tmp_path: Path):
    folder = write_v2(tmp_path / "set")
    video = folder / "videos" / "chunk-000" / CAMERA / "episode_000000.mp4"
    video.write_bytes(b"nothing")
    (folder / "data" / "chunk-000" / "episode_000001.parquet").unlink()
    with pytest.raises(DataError, match=r"episode 1 is corrupted: .* does not exist"):
        source(folder)
    made = source(folder, skip_damaged=True, pad="edge")
    assert [e.index for e in made.data.episodes] == [2]
    assert len(made.steps) == LENGTHS[2] + 1
    assert "episode 1 is skipped" in made.notes[0]
    assert "episode 0 is skipped" in made.notes[1]
    assert (made.sample().obs["state"][..., 1] == 2).all()
