"""What has to be set before torch is imported. Imports nothing heavy.

torch multiplies matrices on a CPU with Intel's MKL, which asks for the processor's vendor before it
uses AVX-512. On AMD processors that have it (Zen 4 and later) large products then take twice as
long as they could: 287 instead of 130 us for matrices of 256 x 256 (benchmarks/mkl.py).
MKL asks through functions that another library may define first; the dynamic linker takes those.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dreamlab.core.files import cache_folder

SWITCH = "DREAMLAB_MKL_AVX512"
"""The environment variable that turns this off: 0."""
SOURCE = """
int mkl_serv_intel_cpu_true(void) { return 1; }
int mkl_serv_intel_cpu(void) { return 1; }
"""
NEEDS = {"AuthenticAMD", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
COMPILERS = ("cc", "gcc", "clang")


class Mkl:
    """Whether this process has told MKL to use AVX-512, and if not, why."""

    active = False
    why = "not asked for"


def prepare() -> None:
    """Set how OpenMP waits and what MKL uses; has no effect once torch is imported."""
    spin_briefly()
    if not Mkl.active:
        Mkl.why = _reason_against() or _load(cache_folder() / "mkl_avx512.so")
        Mkl.active = not Mkl.why


def spin_briefly() -> None:
    """Limit how long OpenMP threads spin while they wait, unless the user has configured it.

    On a busy machine a spinning thread takes the core from the thread it waits for: with torch's
    default, two threads are up to three times slower than one. OpenMP reads this when torch is
    imported; not spinning at all is slower on an idle machine (benchmarks/threads.py).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def slowed_down(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether MKL would do without the AVX-512 that the processor has."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    found: set[str] = set()
    with cpuinfo.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("vendor_id", "flags"):
                found |= set(value.split())
            if not line.strip():  # the next processor
                break
    return found >= NEEDS


def _reason_against() -> str:
    if not slowed_down():
        return "not an AMD processor with AVX-512"
    if os.environ.get(SWITCH) == "0" or "MKL_CBWR" in os.environ:  # MKL's own choice of digits
        return f"AVX2, since {SWITCH}=0 or MKL_CBWR is set"
    return "AVX2, since torch was imported before dreamlab" if "torch" in sys.modules else ""


def _load(library: Path) -> str:
    """Load the library, building it if need be; return what went wrong."""
    try:
        if not library.exists():
            _build(library)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except FileNotFoundError:
        return f"AVX2, since there is no C compiler ({', '.join(COMPILERS)})"
    except (OSError, subprocess.SubprocessError) as error:
        return f"AVX2 ({type(error).__name__}: {error})"
    return ""


def _build(library: Path) -> None:
    """Compile beside its place and rename, so that no process loads a half-written file."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder, library.name)
        line = [compiler, "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(made)]
        subprocess.run(line, input=SOURCE.encode(), capture_output=True, check=True, timeout=60)
        made.replace(library)
