"""Errors, random numbers, files and optimizers."""

from __future__ import annotations

import random as python_random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dreamlab.core import rng
from dreamlab.core.errors import MissingExtraError, require
from dreamlab.core.files import write_atomic, write_json, write_text
from dreamlab.core.optim import AdamConfig, AdamWConfig, Optimizer
from dreamlab.core.tree import to_plain, tree_leaves, tree_map

# -- errors ------------------------------------------------------------------------------------


def test_a_missing_package_says_which_extra_brings_it():
    with pytest.raises(MissingExtraError, match=r"pip install 'dreamlab\[atari\]'"):
        require("a_package_nobody_has.inside", "atari")


def test_a_package_that_is_there_is_returned():
    assert require("json", "atari").dumps([1]) == "[1]"


def test_a_package_that_is_itself_broken_is_not_called_missing(tmp_path: Path, monkeypatch: Any):
    (tmp_path / "broken_package.py").write_text("import something_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs"):
        require("broken_package", "atari")


# -- random numbers ----------------------------------------------------------------------------


def numbers() -> list[float]:
    return [
        python_random.random(),
        python_random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def test_the_state_of_all_generators_survives_a_checkpoint(tmp_path: Path):
    rng.seed_all(3)
    numbers()  # leaves half a pair of normals behind in python and numpy
    torch.save(to_plain(rng.get_state()), tmp_path / "rng.pt")
    want = [numbers() for _ in range(3)]
    rng.seed_all(9)
    rng.set_state(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert [numbers() for _ in range(3)] == want


def test_a_fork_has_its_own_numbers_and_leaves_the_others_alone():
    rng.seed_all(1)
    want = numbers()
    rng.seed_all(1)
    with rng.fork(7):
        inside = numbers()
    assert numbers() == want
    with rng.fork(7):
        assert numbers() == inside


def test_a_fork_that_fails_leaves_the_others_alone_too():
    rng.seed_all(1)
    want = numbers()
    rng.seed_all(1)

    def fail() -> None:
        with rng.fork(7):
            numbers()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert numbers() == want


def test_streams_of_one_seed_differ():
    seeds = {rng.derive(s, *p) for s in (0, 1) for p in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))}
    assert len(seeds) == 10
    assert rng.derive(3, 1, 4) == rng.derive(3, 1, 4)


def test_paths_of_one_length_give_different_streams():
    paths = [(i, j) for i in range(20) for j in range(20)]
    assert len({rng.derive(3, *path) for path in paths}) == len(paths)


def test_paths_of_other_lengths_give_other_streams():
    paths = [(), (0,), (1,), (0, 1), (1, 1), (0, 0, 0), (0, 0, 1), (0, 0, 1, 0), (0,) * 4]
    assert len({rng.derive(3, *path) for path in paths}) == len(paths)


def test_streams_that_runs_rely_on_are_as_ever():
    assert [rng.derive(3, *p) for p in ((0,), (1,), (2, 0), (2, 1))] == [
        int(np.random.SeedSequence([3, *p]).generate_state(1)[0])
        for p in ((0,), (1,), (2, 0), (2, 1))
    ]


def test_the_state_of_a_numpy_generator_survives_a_checkpoint(tmp_path: Path):
    one, two = np.random.default_rng(0), np.random.default_rng(1)
    one.integers(0, 10, 3, dtype=np.int32)  # leaves half a word behind
    torch.save(to_plain(rng.generator_state(one)), tmp_path / "rng.pt")
    rng.set_generator_state(two, torch.load(tmp_path / "rng.pt", weights_only=True))
    assert (
        one.integers(0, 10, 5, dtype=np.int32).tolist()
        == two.integers(0, 10, 5, dtype=np.int32).tolist()
    )
    assert one.random() == two.random()


# -- trees -------------------------------------------------------------------------------------


def test_a_tree_keeps_its_form():
    tree = {"a": [1, (2, 3)], "b": {}}
    assert tree_map(lambda x: x * 2, tree) == {"a": [2, (4, 6)], "b": {}}
    assert dict(tree_leaves(tree)) == {"a/0": 1, "a/1/0": 2, "a/1/1": 3}


def test_what_needs_pickle_cannot_be_saved():
    plain = to_plain({"a": np.arange(3), "b": np.float32(1.5), "c": (None, "x", True)})
    assert plain["a"].equal(torch.arange(3))
    assert plain["b"] == 1.5
    with pytest.raises(TypeError, match="Path"):
        to_plain({"a": Path()})


# -- files -------------------------------------------------------------------------------------


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "folder" / "file"
    write_text(path, "old")

    def fail(file: Any) -> None:
        file.write(b"half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        write_atomic(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_new_file_is_whole_or_absent(tmp_path: Path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "new.json", {"a": object()})
    assert list(tmp_path.iterdir()) == []
    write_json(tmp_path / "new.json", {"a": 1})
    assert (tmp_path / "new.json").read_text() == '{\n  "a": 1\n}\n'


# -- optimizers --------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def data(seed: int, num: int = 8) -> torch.Tensor:
    return torch.randn(num, 3, generator=torch.Generator().manual_seed(seed))


def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (net(x) - 3).square().mean()


def weights(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("clip", [0.0, 0.5, 1e6])
def test_it_moves_as_torchs_adam_with_torchs_clipping(clip: float):
    ours, theirs = network(), network()
    optimizer = Optimizer(AdamConfig(lr=0.01, clip=clip), ours.parameters())
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.0)
    for i in range(4):
        norm = optimizer.step(loss_of(ours, data(i)))
        reference.zero_grad()
        loss_of(theirs, data(i)).backward()
        want = nn.utils.clip_grad_norm_(theirs.parameters(), clip or 1e9)
        reference.step()
        torch.testing.assert_close(norm, want)
        torch.testing.assert_close(weights(ours), weights(theirs), atol=1e-6, rtol=1e-5)


def test_weights_decay_as_in_adamw():
    ours, theirs = network(), network()
    optimizer = Optimizer(AdamWConfig(lr=0.1, weight_decay=0.1), ours.parameters())
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.1)
    optimizer.step(loss_of(ours, data(0)))
    loss_of(theirs, data(0)).backward()
    reference.step()
    torch.testing.assert_close(weights(ours), weights(theirs), atol=1e-6, rtol=1e-5)


def test_k_small_batches_move_the_weights_as_one_large_batch():
    small, large = network(), network()
    one = Optimizer(AdamConfig(lr=0.01, clip=0.5), small.parameters())
    two = Optimizer(AdamConfig(lr=0.01, clip=0.5), large.parameters())
    one.accumulate = 3
    for round_ in range(2):
        parts = [data(10 * round_ + i) for i in range(3)]
        before = weights(small)
        for i, x in enumerate(parts):
            one.step(loss_of(small, x))
            assert (i == 2) != all(a.equal(b) for a, b in zip(before, weights(small), strict=True))
        two.step(loss_of(large, torch.cat(parts)))
        torch.testing.assert_close(weights(small), weights(large), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("done", [0, 1, 2, 3, 5])
def test_a_loaded_optimizer_goes_on_bit_for_bit_also_amid_an_accumulation(
    done: int, tmp_path: Path
):
    def make() -> tuple[nn.Module, Optimizer]:
        net = network()
        optimizer = Optimizer(AdamConfig(lr=0.01, clip=0.5), net.parameters())
        optimizer.accumulate = 3
        return net, optimizer

    net, optimizer = make()
    for i in range(done):
        optimizer.step(loss_of(net, data(i)))
    optimizer.set_lr(0.02)
    state = {"net": net.state_dict(), "opt": optimizer.state_dict()}
    torch.save(to_plain(state), tmp_path / "state.pt")
    other, restored = make()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    other.load_state_dict(state["net"])
    restored.load_state_dict(state["opt"])
    assert restored.lr == 0.02
    for i in range(done, done + 7):
        optimizer.step(loss_of(net, data(i)))
        restored.step(loss_of(other, data(i)))
    assert all(a.equal(b) for a, b in zip(weights(net), weights(other), strict=True))


def test_only_its_own_parameters_receive_a_gradient():
    net = network()
    assert isinstance(net, nn.Sequential)
    Optimizer(AdamConfig(), net[2].parameters()).step(loss_of(net, data(0)))
    assert all(p.grad is None for p in net[0].parameters())
