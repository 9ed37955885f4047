"""Methods compiled by torch.compile: whole updates on a CPU, pieces of them inside a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dreamlab.core.errors import ConfigError
from dreamlab.core.workflow import Workflow, marked


def compile_updates(workflow: Workflow[Any]) -> None:
    """Replace what is marked `@compilable`, optimizer steps included, by compiled functions."""
    import torch._dynamo.config as dynamo

    if not hasattr(dynamo, "trace_autograd_ops"):
        raise ConfigError("compile: needs torch 2.13 or newer, whose compiler follows gradients")
    dynamo.trace_autograd_ops = True  # the backward pass and the optimizer's step as well
    name = type(workflow).__name__
    if marked(type(workflow), "capturable"):
        raise ConfigError(f"compile: {name} gains by it on a GPU only; leave the option out")
    if not compile_methods(workflow):
        raise ConfigError(f"compile: {name} marks no method as compilable; leave the option out")
    for opt in workflow.optimizers.values():
        opt.inner.allocate()


def compile_methods(
    workflow: Workflow[Any], except_for: Sequence[str] = ()
) -> list[CompiledMethod]:
    """Replace the `@compilable` methods of a workflow and its modules, and return them."""
    import torch._inductor.config as inductor

    inductor.fallback_random = True  # the same random numbers as without the compiler
    found: list[CompiledMethod] = []
    for module in workflow.modules():
        for name in marked(type(module), "compilable"):
            if module is workflow and name in except_for:
                continue
            found.append(CompiledMethod(getattr(module, name)))
            object.__setattr__(module, name, found[-1])
    return found


class CompiledMethod:
    """A compiled method; while it is not `enabled` it runs as it was written."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method, self.enabled = method, True
        self.compiled = torch.compile(method, fullgraph=True, dynamic=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.compiled if self.enabled else self.method)(*args, **kwargs)
