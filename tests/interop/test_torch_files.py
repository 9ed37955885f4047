"""Torch checkpoints are read as they are written, and hostile ones in one line or not at all."""

from __future__ import annotations

import collections
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from dreamlab.core.errors import CheckpointError
from dreamlab.interop import torch_files
from dreamlab.interop.torch_files import StandIn, read_tensors

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        self.register_buffer("count", torch.tensor(7))


class Aware(torch.Tensor):
    """A tensor of another class, as libraries make them."""


class Renamed(collections.OrderedDict[str, Any]):
    """Not the OrderedDict that is known."""


def saved(value: Any, path: Path, old: bool = False, **options: Any) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=not old, **options)
    return path


def same(found: Any, tensor: torch.Tensor) -> bool:
    wide = tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()
    return isinstance(found, np.ndarray) and np.array_equal(found, wide.numpy())


# -- what torch writes ----------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("inside", [False, True])
def test_the_state_of_a_module_is_read(old, protocol, inside, tmp_path):
    net = Net()
    state = net.state_dict()
    assert hasattr(state, "_metadata"), "which is what makes it special"
    file = saved({"model": state} if inside else state, tmp_path / "a.pt", old)
    file = saved(torch.load(file), tmp_path / "b.pt", old, pickle_protocol=protocol)
    found = read_tensors(file)
    found = found["model"] if inside else found
    assert isinstance(found, dict)
    assert list(found) == list(state)
    assert all(same(found[k], v) for k, v in state.items())


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_number_is_read(dtype, old, tmp_path):
    value = (torch.randn(2, 3) * 10).to(dtype)
    found = read_tensors(saved([value, nn.Parameter(value, False)], tmp_path / "a.pt", old))
    assert same(found[0], value)
    assert same(found[1], value)


@pytest.mark.parametrize("old", [False, True])
def test_views_that_share_a_storage_are_read(old, tmp_path):
    base = torch.arange(24.0).view(4, 6)
    views = [base, base.T, base[1:3, ::2], base[:, 3], base[2, 2], base[:0], base.expand(1, 4, 6)]
    views += [
        base[:1, :1].expand(30, 50),
        base.expand(3, 4, 6),
        base.as_strided((2, 2), (1, 3), 4),
        torch.zeros(0, 3),
    ]
    found = read_tensors(saved(views, tmp_path / "a.pt", old))
    assert [x.shape for x in found] == [tuple(v.shape) for v in views]
    assert all(same(x, v) for x, v in zip(found, views, strict=True))


def test_many_views_of_one_storage_take_no_more_memory(tmp_path):
    base = torch.zeros(1 << 20)
    found = read_tensors(saved([base[i:] for i in range(500)], tmp_path / "a.pt"))
    assert all(np.shares_memory(found[0], x) for x in found)


@pytest.mark.parametrize("old", [False, True])
def test_a_tensor_of_a_gpu_is_read(old, tmp_path):
    saved({"a": torch.arange(3.0)}, tmp_path / "a.pt", old)
    content = (tmp_path / "a.pt").read_bytes() if old else pickle_of(tmp_path / "a.pt")
    word = b"X\x03\x00\x00\x00cpu"
    assert word in content
    content = content.replace(word, b"X\x06\x00\x00\x00cuda:0")
    if old:
        (tmp_path / "a.pt").write_bytes(content)
    else:
        with_pickle(tmp_path / "a.pt", content)
    assert same(read_tensors(tmp_path / "a.pt")["a"], torch.arange(3.0))


@pytest.mark.parametrize("old", [False, True])
def test_what_lies_beside_the_weights_is_a_stand_in(old, tmp_path):
    config = OmegaConf.create({"task": "walker-run", "sizes": [1, 2]})
    aware, param = torch.ones(2).as_subclass(Aware), nn.Parameter(torch.ones(2))
    aware.note = param.note = "kept nowhere"  # type: ignore[attr-defined]
    optimizer = torch.optim.Adam([param])
    param.sum().backward()
    optimizer.step()
    more = {
        "model": Net().state_dict(), "config": config, "path": Path("a"), "aware": aware,
        "param": param, "size": torch.Size([3]), "device": torch.device("cpu"), "set": {1},
        "optimizer": optimizer.state_dict(), "random": torch.get_rng_state(), "text": "x",
        "renamed": Renamed(a=1), "default": collections.defaultdict(list, a=[1]), "bytes": b"x",
        "number": np.float32(3), "array": np.ones(3), "complex": 1j,
    }  # fmt: skip
    found = read_tensors(saved(more, tmp_path / "a.pt", old))
    kept = ("aware", "param", "model", "optimizer", "random", "text")
    assert {k for k, v in found.items() if not isinstance(v, StandIn)} == set(kept)
    assert same(found["aware"], torch.ones(2))
    assert same(found["param"], param)
    assert same(found["optimizer"]["state"][0]["exp_avg"], torch.tensor([0.1, 0.1]))


def test_tensors_of_unknown_numbers_are_stand_ins(tmp_path):
    state = {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.complex64)}
    state |= {"c": torch.ones(2, dtype=torch.float8_e4m3fn), "d": torch.ones(2, device="meta")}
    found = read_tensors(saved(state, tmp_path / "a.pt"))
    assert same(found["a"], torch.ones(2))
    assert all(isinstance(found[k], StandIn) for k in "bcd")
    with pytest.raises(CheckpointError, match="an unknown kind"):
        read_tensors(saved({"b": state["b"]}, tmp_path / "b.pt", old=True))


# -- what nobody should write ---------------------------------------------------------------------

STATE = b"}X\x04\x00\x00\x00nameK\x01s"
FLOATS = b"ctorch\nFloatStorage\n"


def zipped(path: Path, content: bytes, storage: bytes = bytes(32)) -> Path:
    """Write a checkpoint with this pickle and one storage, '0'."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", content)
        file.writestr("a/data/0", storage)
    return path


def pickle_of(path: Path) -> bytes:
    with zipfile.ZipFile(path) as file:
        return file.read(f"{path.stem}/data.pkl")


def with_pickle(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path) as old:
        parts = {i.filename: old.read(i) for i in old.infolist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in parts.items():
            new.writestr(name, content if name.endswith("data.pkl") else data)


def integer(value: int) -> bytes:
    return b"\x8a" + bytes([16]) + value.to_bytes(16, "little", signed=True)


def storage(kind: bytes = FLOATS, key: bytes = b"0") -> bytes:
    """Return what leaves a storage on the stack of a pickle."""
    texts = [struct.pack("<cI", b"X", len(t)) + t for t in (b"storage", key, b"cpu")]
    return b"(" + texts[0] + kind + texts[1] + texts[2] + integer(8) + b"tQ"


def tensor(offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """Return a pickle with a tensor in the storage of eight numbers."""
    numbers = lambda values: b"(" + b"".join(integer(v) for v in values) + b"t"  # noqa: E731
    args = storage() + integer(offset) + numbers(shape) + numbers(stride) + b"\x89N"
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + args + b"tR."


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_tensors(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


def test_crafted_pickles_are_made_as_they_should_be(tmp_path):
    found = read_tensors(zipped(tmp_path / "a.pt", tensor(1, (2, 3), (3, 1))))
    assert found.shape == (2, 3)
    assert read_tensors(zipped(tmp_path / "b.pt", tensor(8, (0, 9), (1, 1)))).shape == (0, 9)


TENSORS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "one too many": (0, (9,), (1,)),
    "starts outside": (9, (0,), (1,)),
    "ends outside": (1, (8,), (1,)),
    "strides outside": (0, (2,), (8,)),
    "strides far outside": (0, (2, 2), (1 << 61, 1 << 61)),
    "an offset before": (-1, (1,), (1,)),
    "an offset far outside": (1 << 70, (1,), (1,)),
    "a negative stride": (7, (8,), (-1,)),
    "a negative size": (0, (-2, -4), (1, 1)),
    "a product that overflows": (0, (1 << 32, 1 << 32), (0, 0)),
    "a size that overflows": (0, (1 << 64,), (0,)),
    "one number very many times": (0, (1 << 20, 2), (0, 0)),
    "nothing of an impossible size": (0, (0, 1 << 70), (1, 1)),
    "more strides than sizes": (0, (2,), (1, 1)),
    "many dimensions": (0, (1,) * 9, (1,) * 9),
}


@pytest.mark.parametrize("case", TENSORS)
def test_a_tensor_outside_its_storage_is_refused(case, tmp_path):
    refused(zipped(tmp_path / "a.pt", tensor(*TENSORS[case])))


def test_a_stride_that_moves_nowhere_may_be_anything(tmp_path):
    found = read_tensors(zipped(tmp_path / "a.pt", tensor(3, (1, 2), (1 << 80, 1))))
    assert found.shape == (1, 2)


REFUSED: dict[str, bytes] = {
    "state for a storage": storage() + STATE + b"b.",
    "attributes for a storage": storage() + b"N" + STATE + b"\x86b.",
    "state for a kind": FLOATS + STATE + b"b.",
    "attributes for a kind": FLOATS + b"N" + STATE + b"\x86b.",
    "state for a function": b"ctorch._utils\n_rebuild_tensor_v2\n" + STATE + b"b.",
    "state for a stand-in's class": b"cos\nsystem\n" + STATE + b"b.",
    "attributes for a stand-in's class": b"cos\nsystem\nN" + STATE + b"\x86b.",
    "state for a tensor": tensor(0, (8,), (1,))[:-1]
    + b"(K\x01K\x09\x85cnumpy\ndtype\n\x89C\x00tb.",
    "entries for a tensor": tensor(0, (8,), (1,))[:-1] + b"K\x00K\x01s.",
    "a storage that is a number": b"(K\x01K\x02tQ.",
    "a storage without a name": b"(X\x07\x00\x00\x00storage" + FLOATS + b"K\x00K\x00K\x08tQ.",
    "a storage that is not there": storage(key=b"../data.pkl") + b".",
    "bytes that are no numbers": storage(b"ctorch\nDoubleStorage\n", b"0")[:-2] + b"tQ.",
    "a copy by an ordered dictionary": b"ccollections\nOrderedDict\n}\x85R.",
    "an object of a number's": b"\x82\x01.",
    "a memo of its own size": b"Nr\xff\xff\xff\x7f.",
    "no end": b"]" * 10,
    "nothing on the stack": b".",
    "a long number": b"\x8b\xff\xff\xff\x7f.",
    "a long text": b"\x8d" + b"\xff" * 7 + b"\x7f.",
    "a frame of any size": b"\x95" + b"\xff" * 7 + b"\x7f.",
    "a buffer": b"\x97.",
    "a deep tuple as a key": b"}" + b"K\x00" + b"\x85" * 500_000 + b"K\x01s.",
    "a deep tuple by the memo": b"}K\x00" + b"\x85q\x00h\x000" * 100_000 + b"K\x01s.",
    "a deep set": b"}(K\x00" + b"\x85" * 150 + b"\x91" + b"\x85" * 60 + b"K\x01s.",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_crafted_pickle_is_refused(case, tmp_path):
    data = bytes(31) if case == "bytes that are no numbers" else bytes(32)
    refused(zipped(tmp_path / "a.pt", b"\x80\x04" + REFUSED[case].removeprefix(b"\x80\x02"), data))


TOUCH = b"cpathlib\nPath\nX\x06\x00\x00\x00canary\x85R"
STOOD_IN: dict[str, bytes] = {
    "os.system": b"cos\nsystem\nX\x0c\x00\x00\x00touch canary\x85R.",
    "posix.system": b"cposix\nsystem\nX\x0c\x00\x00\x00touch canary\x85R.",
    "builtins.exec": b"cbuiltins\nexec\nX\x04\x00\x00\x00quit\x85R.",
    "builtins.getattr": b"c__builtin__\ngetattr\n" + TOUCH + b"X\x05\x00\x00\x00touch\x86R)R.",
    "a dotted name": b"\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93)R.",
    "an alias of OrderedDict": b"ctyping\nOrderedDict\n)R.",
    "OrderedDict of a module that has it": b"ctorch.nn.modules.module\nOrderedDict\n)R.",
    "torch.load": b"ctorch\nload\nX\x04\x00\x00\x00evil\x85R.",
    "text of everything": b"cbuiltins\nstr\n]q\x00(h\x00h\x00e\x85R.",
    "an object of a class": b"csubprocess\nPopen\nX\x05\x00\x00\x00touch\x85\x81.",
    "an instance": b"(X\x0c\x00\x00\x00touch canaryios\nsystem\n.",
    "state for a stand-in": b"ca\nB\n)R" + STATE + b"b.",
}


@pytest.mark.parametrize("case", STOOD_IN)
def test_what_a_pickle_calls_is_a_stand_in(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = read_tensors(zipped(tmp_path / "a.pt", b"\x80\x04" + STOOD_IN[case]))
    assert isinstance(found, StandIn)
    assert os.listdir(tmp_path) == ["a.pt"]
    assert not StandIn.__dict__.get("name"), "nothing of it changed"


def test_a_dictionary_that_contains_itself_is_read(tmp_path):
    found = read_tensors(zipped(tmp_path / "a.pt", b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s."))
    assert found["model"] is found


# -- broken files ---------------------------------------------------------------------------------


def cut(share: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * share)]


def rezipped(path: Path, method: int = zipfile.ZIP_STORED, **more: bytes) -> Path:
    """Return a checkpoint with other parts, or compressed by another method."""
    with zipfile.ZipFile(path) as old:
        parts = {i.filename: old.read(i) for i in old.infolist()} | more
    with zipfile.ZipFile(path, "w", method) as new:
        for name, data in parts.items():
            new.writestr(name, data)
    return path


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(old, share, tmp_path):
    file = saved(Net().state_dict(), tmp_path / "a.pt", old)
    file.write_bytes(cut(share)(file.read_bytes()))
    refused(file)


def test_an_old_file_that_claims_more_than_it_has_is_refused(tmp_path):
    file = saved([torch.arange(5.0)], tmp_path / "a.pt", old=True)
    content = file.read_bytes()
    count, values = struct.pack("<q", 5), torch.arange(5.0).numpy().tobytes()
    assert content.endswith(count + values)
    for claim in (6, -1, 1 << 40, (1 << 63) - 1):
        file.write_bytes(content.removesuffix(count + values) + struct.pack("<q", claim) + values)
        assert "truncated" in refused(file)
    file.write_bytes(content.removesuffix(count + values) + struct.pack("<q", 4) + values)
    assert "exceeds its storage of 4" in refused(file)


def test_other_pickles_and_zip_files_are_refused(tmp_path):
    file = tmp_path / "a.pt"
    for content in (pickle.dumps({"model": {}}), pickle.dumps(1), b"hello", bytes(99)):
        file.write_bytes(content)
        assert "not a torch checkpoint" in refused(file)
    stream = io.BytesIO()
    np.savez(stream, a=np.ones(3))
    file.write_bytes(stream.getvalue())
    assert "not a torch checkpoint" in refused(file)
    rezipped(saved([1], file), **{"b/data.pkl": b"N."})
    assert "not a torch checkpoint" in refused(file)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    file = rezipped(saved(torch.zeros(1 << 20), tmp_path / "a.pt"), zipfile.ZIP_DEFLATED)
    assert file.stat().st_size < 1 << 14
    assert read_tensors(file).shape == (1 << 20,)
    monkeypatch.setattr("dreamlab.interop.array_files.memory_available", lambda: 1 << 20)
    assert "only 1,048,576 are free" in refused(file)
    monkeypatch.setattr(torch_files, "memory_available", lambda: 1 << 10)
    assert "only 1,024 are free" in refused(saved(torch.zeros(1 << 10), file, old=True))


def test_a_pickle_of_any_size_is_refused(tmp_path):
    content = b"\x80\x02" + b"N0" * torch_files.MOST_PICKLE + b"N."
    assert "its pickle has more than" in refused(zipped(tmp_path / "a.pt", content))


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_rare_compression_is_refused(method, tmp_path):
    file = rezipped(saved(torch.zeros(9), tmp_path / "a.pt"), method)
    assert "by a method that is not read here" in refused(file)


def test_numbers_of_another_byte_order_are_refused(tmp_path):
    file = rezipped(saved(torch.zeros(9), tmp_path / "a.pt"), **{"a/byteorder": b"big"})
    assert "little-endian" in refused(file)
