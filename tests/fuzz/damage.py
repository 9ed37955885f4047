"""Ways in which a file gets damaged, each a function of the file and a random number generator."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

Damage = Callable[[Path, Random], None]
NUMBER = re.compile(rb"-?\d+(\.\d+)?(e[-+]?\d+)?")
ODD = (
    b"1" + b"0" * 400,
    b"1e999",
    b"NaN",
    b"-Infinity",
    b"-1",
    b'"7"',
    b"null",
    b"[]",
    b"9" * 5000,
)


def truncate(path: Path, random: Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(max(len(data), 1))])


def flip_bits(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 3, 10)) if data else 0):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(bytes(data))


def zeros(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    start = random.randrange(max(len(data), 1))
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    path.write_bytes(bytes(data))


def replaced_by(*contents: bytes) -> Damage:
    return lambda path, random: (path.write_bytes(random.choice(contents)), None)[1]


def delete(path: Path, random: Random) -> None:
    path.unlink()


def folder(path: Path, random: Random) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path, random: Random) -> None:
    path.unlink()
    path.symlink_to(path)


def double_lines(path: Path, random: Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    at = random.randrange(max(len(lines), 1))
    path.write_bytes(b"".join([*lines[: at + 3], *lines[at:]]))


def drop_lines(path: Path, random: Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    at = random.randrange(max(len(lines), 1))
    path.write_bytes(b"".join([*lines[:at], *lines[at + 2 :]]))


def not_utf8(path: Path, random: Random) -> None:
    data = path.read_bytes()
    at = random.randrange(len(data) + 1)
    path.write_bytes(data[:at] + b"\xc3\x28\xff" + data[at:])


def odd_numbers(path: Path, random: Random) -> None:
    data = path.read_bytes()
    places = list(NUMBER.finditer(data))
    for found in random.sample(places, min(3, len(places))):
        data = data.replace(found.group(), random.choice(ODD), 1)
    path.write_bytes(data)


DAMAGES: dict[str, Damage] = {
    "truncate": truncate,
    "flip_bits": flip_bits,
    "zeros": zeros,
    "text": replaced_by(b"hello\n", b"a: 1\nb: 2\n", b"{}", b"0", b'"text"'),
    "binary": replaced_by(bytes(range(256)) * 8, b"\x89PNG\r\n\x1a\n", b"PK\x03\x04"),
    "empty": replaced_by(b"", b"\n"),
    "list": replaced_by(b"[]", b"- 1\n- 2\n", b"[[1, 2], {}]"),
    "null": replaced_by(b"null", b"~\n"),
    "deep": replaced_by(b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000),
    "delete": delete,
    "folder": folder,
    "loop": loop,
    "double_lines": double_lines,
    "drop_lines": drop_lines,
    "not_utf8": not_utf8,
    "odd_numbers": odd_numbers,
}
