"""Serialization of the learner's workflow for actors."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dreamlab.core.types import Array
from dreamlab.core.workflow import Workflow


@dataclass(frozen=True)
class Snapshot:
    """Weights, buffers and counts of a workflow, and its normalization statistics."""

    version: int
    tensors: dict[str, Array]
    dtypes: dict[str, torch.dtype]
    """Types of tensors that numpy lacks; their raw bits are sent."""
    counts: dict[str, Any]
    statistics: dict[str, Any]


@torch.no_grad()
def pack(workflow: Workflow[Any], version: int, statistics: dict[str, Any]) -> bytes:
    """Serialize everything that acting depends on, without optimizers."""
    tensors: dict[str, Array] = {}
    dtypes: dict[str, torch.dtype] = {}
    for name, tensor in _tensors(workflow).items():
        here = tensor.detach().cpu()
        if here.dtype == torch.bfloat16:
            dtypes[name], here = here.dtype, here.view(torch.int16)
        tensors[name] = here.numpy()
    counts = {name: module.get_extra_state() for name, module in _counting(workflow).items()}
    snapshot = Snapshot(version, tensors, dtypes, counts, statistics)
    return pickle.dumps(snapshot, protocol=5)


def unpack(payload: bytes) -> Snapshot:
    """Deserialize a snapshot, from our own learner only."""
    return pickle.loads(payload)


@torch.no_grad()
def adopt(workflow: Workflow[Any], snapshot: Snapshot) -> None:
    """Load a snapshot into a workflow."""
    mine = _tensors(workflow)
    assert mine.keys() == snapshot.tensors.keys(), "the learner has another workflow"
    for name, array in snapshot.tensors.items():
        given = torch.from_numpy(array)
        mine[name].copy_(given.view(snapshot.dtypes.get(name, given.dtype)))
    for name, module in _counting(workflow).items():
        module.set_extra_state(snapshot.counts[name])


def _tensors(workflow: Workflow[Any]) -> dict[str, Tensor]:
    return {**dict(workflow.named_parameters()), **dict(workflow.named_buffers())}


def _counting(workflow: Workflow[Any]) -> dict[str, nn.Module]:
    """Return the modules with state besides tensors; the workflow's own is its optimizers'."""
    return {
        name: module
        for name, module in workflow.named_modules()
        if name and type(module).get_extra_state is not nn.Module.get_extra_state
    }
