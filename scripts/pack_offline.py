"""Makes a folder of installed packages small, and one file of it; pack_offline.sh calls this."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

TOP = "site"
LIMIT_BYTES = 64_000_000
DROPPED = (
    *("bin", "**/__pycache__", "**/tests", "**/*.pyi", "**/*.md", "**/include"),
    *("*.dist-info/RECORD", "*.dist-info/WHEEL", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED"),
    # the control suite: what its tasks do not import, and the dog, larger than all others
    *(f"dm_control/{x}" for x in ("locomotion", "composer", "entities", "manipulation", "blender")),
    *(f"dm_control/{x}" for x in ("autowrap", "viewer", "mjcf/test_assets", "mujoco/testing")),
    *("dm_control/**/*_test.py", "dm_control/suite/dog_assets", "dm_control/suite/*.png"),
    *("mujoco/mjx", "mujoco/plugin", "mujoco/usd", "mujoco/bin", "mujoco/sample"),
    *("OpenGL/DLLS", "OpenGL/Tk"),
    *("matplotlib/mpl-data/sample_data", "matplotlib/mpl-data/images", "matplotlib/testing"),
    # classic control draws: no sounds, fonts or cameras
    *(f"pygame/{x}" for x in ("docs", "examples", "_camera*", "mixer*.so", "_sdl2/mixer*.so")),
)
LIBRARIES = {"pygame_ce.libs": "pygame", "pygame.libs": "pygame"}
SCIPY = '''"""Stands for scipy: the control suite imports it, and few of its tasks use it."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_here = Path(__file__).resolve().parents[1]
_spec = PathFinder.find_spec(__name__, [p for p in sys.path if Path(p).resolve() != _here])
if _spec is not None and _spec.loader is not None:
    sys.modules[__name__] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[__name__])
'''


def prune(site: Path) -> None:
    """Remove what no run needs, and what of a package's metadata nothing reads."""
    for pattern in DROPPED:
        for path in sorted(site.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for path in site.glob("*.dist-info/METADATA"):
        headers = path.read_text(encoding="utf-8").partition("\n\n")[0]
        path.write_text(headers + "\n", encoding="utf-8")


def add_scipy_stub(site: Path) -> None:
    """Put an empty scipy beside the control suite; a real one behind it on the path is taken."""
    for name, text in {"__init__": SCIPY, "linalg": "", "ndimage": "", "interpolate": ""}.items():
        path = site / "scipy" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def pack(site: Path, out: Path) -> None:
    """Write the folder as one file: the same for the same content."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:xz", preset=9) as tar:
        for path in sorted(p for p in site.rglob("*") if p.is_file()):
            tar.add(path, Path(TOP) / path.relative_to(site), filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def main(site: Path, out: Path) -> None:
    """Prune, pack and say how large it became."""
    prune(site)
    if (site / "dm_control").is_dir():
        add_scipy_stub(site)
    pack(site, out)
    print(f"{out}  {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
