"""MKL uses AVX-512 on AMD processors that have it, in every process that the lab starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dreamlab.accel import before_torch
from dreamlab.accel.before_torch import SWITCH, slowed_down
from dreamlab.core.files import CACHE

FEATURES = "fpu avx2 avx512f avx512bw avx512cd avx512dq avx512vl"
CPUINFO = "processor\t: 0\nvendor_id\t: {0}\nflags\t\t: {1}\n\nprocessor\t: 1\nflags\t: other\n"
PRODUCT = "import torch; torch.ones(64, 64) @ torch.ones(64, 64)"


def python(code: str, **environment: str) -> str:
    """Return what a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "MKL_VERBOSE": "1", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def why(**environment: str) -> str:
    """Return the reason that a fresh process gives, with torch working all the same."""
    code = f"from dreamlab.accel.before_torch import Mkl, prepare; prepare(); {PRODUCT}"
    return python(f"{code}; print('why', Mkl.why)", **environment).rpartition("why ")[2].strip()


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", FEATURES, True),
        ("GenuineIntel", FEATURES, False),
        ("AuthenticAMD", FEATURES.replace(" avx512bw", ""), False),
    ],
)
def test_only_amd_with_avx512_is_slowed_down(vendor, flags, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(vendor, flags))
    assert slowed_down(tmp_path / "cpuinfo") is expected
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert not slowed_down(tmp_path / "cpuinfo")


@pytest.mark.parametrize(
    "first",
    [
        "from dreamlab.accel.before_torch import prepare; prepare()",
        "import dreamlab; dreamlab.train",
        "from dreamlab.cli import main; main(['train', '--help'])",
    ],
)
def test_mkl_says_what_it_uses(first, tmp_path):
    """Its verbose mode names the instructions in the first line."""
    if not torch.backends.mkl.is_available():
        assert not slowed_down(), "torch without MKL on a processor that has AVX-512"
    said = python(f"{first}; {PRODUCT}", **{CACHE: str(tmp_path)})
    off = python(f"{first}; {PRODUCT}", **{CACHE: str(tmp_path), SWITCH: "0"})
    if slowed_down():
        assert "AVX-512" in said
        assert "AVX-512" not in off
        assert [p.name for p in tmp_path.iterdir()] == ["mkl_avx512.so"]
    else:
        assert said.partition(",")[0] == off.partition(",")[0]
        assert not list(tmp_path.iterdir())


def test_what_prevents_it_is_told_and_changes_nothing_else(tmp_path, monkeypatch):
    if not slowed_down():
        assert why() == "not an AMD processor with AVX-512"
        return
    assert why() == ""
    assert "no C compiler" in why(**{CACHE: str(tmp_path / "a"), "PATH": str(tmp_path)})
    (tmp_path / "file").write_text("")
    assert "FileExistsError" in why(**{CACHE: str(tmp_path / "file")})
    broken = tmp_path / "b" / "mkl_avx512.so"
    broken.parent.mkdir()
    broken.write_text("no library")
    assert "OSError" in why(**{CACHE: str(broken.parent)})
    monkeypatch.setattr(before_torch.Mkl, "active", False)
    monkeypatch.setattr(before_torch.Mkl, "why", "")
    before_torch.prepare()
    assert "torch was imported before" in before_torch.Mkl.why


def test_tests_compute_as_the_command_line_does():
    assert before_torch.Mkl.active is slowed_down()


def test_no_compiler_leaves_no_half_library(tmp_path, monkeypatch):
    monkeypatch.setattr(before_torch, "SOURCE", "this is no C")
    assert "CalledProcessError" in before_torch._load(tmp_path / "x.so")
    assert not list(tmp_path.iterdir())


def test_the_file_imports_nothing_heavy():
    code = "import sys, dreamlab.accel.before_torch; print({'torch', 'numpy'} & set(sys.modules))"
    assert python(code).strip() == "set()"
    assert Path(before_torch.__file__).is_file()
