"""Shapes in signatures are true: what the tests enforce, and where they keep out of the way."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from torch import Tensor

from dreamlab.components.critics.transitions import Transitions
from dreamlab.components.exploration.ensemble import EnsembleConfig, LatentEnsemble
from dreamlab.nn.dists import Categorical
from dreamlab.nn.layers import RMSNorm
from dreamlab.ops.returns import lambda_return
from dreamlab.ops.scaling import symlog
from dreamlab.workflows.dqn import taken
from tests.shapes import bare_tensors, checked


def test_sizes_that_disagree_are_refused():
    b_t = torch.zeros(3, 5)
    for _ in range(2):  # shapes that were right before make no others right
        with pytest.raises(BeartypeCallHintViolation, match="lambda_return, value"):
            lambda_return(b_t, b_t, torch.zeros(3, 4), 0.9)
        assert lambda_return(b_t, b_t, b_t, 0.9).shape == (3, 4)


def test_types_that_disagree_are_refused():
    with pytest.raises(BeartypeCallHintViolation):
        symlog(torch.zeros(3, dtype=torch.int64))


def test_modules_of_every_room_are_checked():
    with pytest.raises(BeartypeCallHintViolation, match=r"RMSNorm\.forward, x"):
        RMSNorm(3)(torch.zeros(2, 3, dtype=torch.bool))
    ensemble = LatentEnsemble(EnsembleConfig(2, 1, 8), 4, 1, 3)
    with pytest.raises(BeartypeCallHintViolation, match=r"LatentEnsemble\.forward, action"):
        ensemble(torch.zeros(3, 4), torch.zeros(2, 1))
    with pytest.raises(BeartypeCallHintViolation, match="taken, action"):
        taken(torch.zeros(3, 2, 1), torch.zeros(2, dtype=torch.int64))


def test_what_is_returned_and_every_entry_of_a_collection_are_checked():
    @checked
    def grow(x: Float[Tensor, " b"], by: int) -> dict[str, Float[Tensor, " b+{by}"]]:
        return {"right": x.new_zeros(len(x) + by), "asked": x.new_zeros(len(x) + min(by, 2))}

    assert len(grow(torch.zeros(3), 2)) == 2
    with pytest.raises(BeartypeCallHintViolation, match="return"):
        grow(torch.zeros(3), 3)


def test_every_entry_of_a_tuple_of_any_length_is_checked_and_chance_is_left_alone():
    @checked
    def copies(x: Float[Tensor, " b"], last: int) -> tuple[Float[Tensor, " b"], ...]:
        return (*(x.clone() for _ in range(50)), x.new_zeros(last))

    random.seed(0)
    before = random.getstate()
    assert len(copies(torch.zeros(3), 3)) == 51
    assert random.getstate() == before
    with pytest.raises(BeartypeCallHintViolation, match="return"):
        copies(torch.zeros(3), 4)


def test_fields_of_dataclasses_are_checked():
    x = torch.zeros(3)
    assert len(Transitions({}, x, x, x, {}).reward) == 3
    with pytest.raises(BeartypeCallHintViolation, match="factor"):
        Transitions({}, x, x, torch.zeros(2), {})


def test_what_is_compiled_exported_or_traced_runs_as_it_is_written():
    x = torch.randn(2, 3)
    norm = RMSNorm(3)
    compiled = torch.compile(norm, backend="eager", fullgraph=True)
    rows = {0: torch.export.Dim("rows")}
    exported = torch.export.export(norm, (x,), dynamic_shapes=(rows,))
    traced = torch.jit.trace(norm, (x,))
    for other in (compiled, exported.module(), traced):
        torch.testing.assert_close(other(x.repeat(3, 1)), norm(x).repeat(3, 1))


def test_what_was_checked_before_can_still_be_compiled():
    def best(x: Tensor) -> Tensor:
        return Categorical(x).mode()  # an object that the compiler makes while it traces

    x = torch.randn(2, 3)
    torch.testing.assert_close(best(x), torch.compile(best, backend="eager", fullgraph=True)(x))


def test_nothing_is_checked_outside_of_tests():
    code = (
        "import sys, dreamlab.cli, dreamlab.build, dreamlab.workflows.dreamer_v3\n"
        "assert 'beartype' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unshaped_tensor_is_found_wherever_it_hides():
    text = """
def f(x: Float[Tensor, "b"], y: Int[Tensor, "b"] | None) -> dict[str, Float[Tensor, "b"]]: ...
def g(x: Float[Tensor, "b"]) -> tuple[Tensor, int]: ...
class C:
    field: Tensor
    def h(self, *x: Tensor | None) -> None: ...
@dataclass(frozen=True)
class D:
    field: dict[str, Tensor]
"""
    assert sorted(bare_tensors(text)) == ["3 g", "6 h", "8 D"]
