"""The file for a machine without a network: that its list is whole, and that what it holds runs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers import metrics

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "pack_offline.sh"
EXTRAS = ("atari", "dmc", "crafter", "minigrid")
MODULES = {"PIL": "pillow", "yaml": "pyyaml", "hydra": "hydra-core", "triton": "torch"}
"""Where a module is not called as its package; triton comes with torch."""


def listed(*groups: str) -> set[str]:
    """Return the packages of these groups in the script's list."""
    lines = (ROOT / "scripts" / "offline-packages.txt").read_text().splitlines()
    pairs = [line.split(": ", 1) for line in lines if re.match(r"\w+: ", line)]
    return {name_of(w) for group, words in pairs if group in groups for w in words.split()}


def name_of(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def needs(name: str) -> set[str]:
    """Return what an installed package asks for."""
    asked = [Requirement(r) for r in metadata.requires(name) or []]
    now = (r for r in asked if not r.marker or r.marker.evaluate({"extra": ""}))
    return {canonicalize_name(r.name) for r in now}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_core_holds_every_dependency():
    wanted = {name_of(d) for d in project()["dependencies"]}
    assert wanted - listed("core") == {"torch", "numpy", "av"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_holds_what_the_project_gives_it(extra):
    wanted = {name_of(d) for d in project()["optional-dependencies"][extra]}
    assert wanted - listed("core", extra) <= listed("absent")


@pytest.mark.parametrize("extra", [*EXTRAS, "tests"])
def test_what_a_package_asks_for_is_held_or_left_out_on_purpose(extra):
    held = listed("core", extra)
    missing: dict[str, set[str]] = {}
    for name in held:
        missing[name] = needs(name) - held - listed("absent")
    assert not {name: rest for name, rest in missing.items() if rest}


def test_the_core_holds_what_the_program_imports_at_its_top():
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                found |= {a.name.split(".")[0] for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    others = found - sys.stdlib_module_names - {"dreamlab"}
    packages = {canonicalize_name(MODULES.get(m, m)) for m in others}
    assert packages - listed("core") == {"torch", "numpy"}


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--out", "a.tar.xz"], "--python"),
        (["--python", "3.12"], "--out"),
        (["--python", "3.12", "--out", "a.zip"], ".tar.xz"),
        (["--python", "3.12", "--out", "a.tar.xz", "--extras", "dmc,go"], "unknown extra go"),
        (["--quick", "1"], "unknown option --quick"),
        (["--python"], "needs a value"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_fetched(options, fault, tmp_path):
    command = [SCRIPT, *options]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert fault in done.stderr
    assert not list(tmp_path.iterdir())


def beside(folder: Path) -> Path:
    """Return a folder that holds torch and numpy, and what torch needs, and nothing else."""
    names = {"torch", "numpy"}
    while (more := {n for name in names for n in needs(name)} | names) != names:
        names = more
    folder.mkdir()
    for name in names:
        installed = Path(str(metadata.distribution(name).locate_file("")))
        tops = {f.parts[0] for f in metadata.files(name) or []} - {"..", "__pycache__"}
        for top in tops - {p.name for p in folder.iterdir()}:
            (folder / top).symlink_to(installed / top)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_is_packed_trains_where_only_torch_and_numpy_are(tmp_path):
    version, out = f"{sys.version_info.major}.{sys.version_info.minor}", tmp_path / "a.tar.xz"
    command = [SCRIPT, "--python", version, "--out", out]
    subprocess.run(command, check=True, env={**os.environ, "PYTHON": sys.executable})
    assert out.stat().st_size < 25e6
    with tarfile.open(out) as tar:
        tar.extractall(tmp_path, filter="data")
    site = tmp_path / "site"
    assert (site / "dreamlab" / "configs" / "train.yaml").is_file()
    unwanted = ("torch", "numpy", "av", "mujoco", "ale_py", "bin")
    assert not [name for name in unwanted if (site / name).exists()]
    assert not list(site.rglob("*.pyi"))
    assert not list(site.glob("*.dist-info/direct_url.json"))
    own = str(ROOT).encode()
    assert not [p for p in site.rglob("*") if p.is_file() and own in p.read_bytes()]
    path = f"{site}:{beside(tmp_path / 'there')}"
    options = ["tiny=true", "device=cpu", "training.total_frames=160", f"run.dir={tmp_path}/r"]
    subprocess.run(  # -S: nothing of this environment is on the path
        [sys.executable, "-S", "-m", "dreamlab", "train", "dreamer_cartpole", *options],
        check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path, "MUJOCO_GL": "disable"},
    )  # fmt: skip
    assert metrics(tmp_path / "r")
    assert list((tmp_path / "r" / "videos").glob("*.frames.png"))
    assert (tmp_path / "r" / "report" / "learning_curve.png").is_file()
