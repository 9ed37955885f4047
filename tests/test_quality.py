"""The laws that a tool can check: imports one way, types, style, size."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from dreamlab.engine.orchestrator import Orchestrator
from tests.shapes import ROOMS, bare_tensors

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_imports_point_one_way():
    run(str(BIN / "lint-imports"))


def test_kernels_live_where_nothing_wraps_them():
    home = ROOT / "src" / "dreamlab" / "accel" / "kernels"
    for path in (ROOT / "src" / "dreamlab").rglob("*.py"):
        if path.parent != home:
            tops = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import)]
            assert all(a.name != "triton" for n in tops for a in n.names), path


def test_style():
    run(str(BIN / "ruff"), "check", ".")
    run(str(BIN / "ruff"), "format", "--check", ".")


@pytest.mark.slow
def test_types():
    run(str(BIN / "pyright"))


def functions(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node


@pytest.mark.parametrize(
    "folder", ["workflows", "components", "engine", "data", "core", "envs", "accel"]
)
def test_files_and_functions_stay_small(folder):
    for path in (ROOT / "src" / "dreamlab" / folder).rglob("*.py"):
        lines = len(path.read_text().splitlines())
        assert lines <= 420, f"{path.name} has {lines} lines"
        for node in functions(path):
            size = (node.end_lineno or 0) - node.lineno + 1
            assert size <= 60, f"{path.name}: {node.name} has {size} lines"


@pytest.mark.parametrize("room", ROOMS)
def test_signatures_say_the_shapes_of_tensors(room):
    paths = (ROOT / "src" / "dreamlab" / room).rglob("*.py")
    bare = [f"{path.name}:{x}" for path in paths for x in bare_tensors(path.read_text())]
    assert not bare, 'write Float[Tensor, "b t"], not Tensor:\n' + "\n".join(bare)


def test_nothing_replaces_a_method_of_the_loop():
    methods = {n for n in vars(Orchestrator) if not n.startswith("__")}
    replaced: list[str] = []
    for path in (p for d in ("src", "tests", "benchmarks") for p in (ROOT / d).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
                names = [ast.unparse(t) for t in node.targets if isinstance(t, ast.Attribute)]
                loops = [n for n in names if "loop" in n or "orchestrator" in n]
                found = [n for n in loops if n.rpartition(".")[2] in methods]
                replaced += [f"{path.name}: {n}" for n in found if not n.startswith("self.")]
    assert not replaced, f"register an Observer instead: {replaced}"


def test_the_core_imports_without_any_extra():
    code = (
        "import sys; import dreamlab.cli, dreamlab.build, dreamlab.config\n"
        "heavy = {'ale_py','mujoco','dm_control','crafter','minigrid','wandb',"
        "'tensorboard','Box2D','matplotlib','av'}\n"
        "found = heavy & set(sys.modules)\n"
        "assert not found, found"
    )
    run(sys.executable, "-c", code)
