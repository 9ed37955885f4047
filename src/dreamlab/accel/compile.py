"""Methods compiled by torch.compile: whole updates on a CPU, parts of them inside a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from dreamlab.accel.ahead import Rehearsal
from dreamlab.core.errors import ConfigError
from dreamlab.core.workflow import Workflow, marked

RECOMPILE_LIMIT = 64


def compile_updates(workflow: Workflow[Any]) -> list[CompiledMethod]:
    """Compile the methods marked `@compilable`, including optimizer steps."""
    import torch._dynamo.config as dynamo

    if not hasattr(dynamo, "trace_autograd_ops"):
        raise ConfigError("compile: needs torch 2.13 or newer, whose compiler follows gradients")
    dynamo.trace_autograd_ops = True  # the backward pass and the optimizer's step as well
    # methods captured as a whole are compiled in parts, without gradients and optimizer steps
    methods = compile_methods(workflow, except_for=marked(type(workflow), "capturable"))
    if not methods:
        name = type(workflow).__name__
        raise ConfigError(f"compile: {name} marks no method as compilable; leave the option out")
    for opt in workflow.optimizers.values():
        opt.allocate()
    return methods


def compile_methods(
    workflow: Workflow[Any], except_for: Sequence[str] = ()
) -> list[CompiledMethod]:
    """Compile the `@compilable` methods of a workflow and its modules, and return them."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    inductor.fallback_random = True  # the same random numbers as without the compiler
    # each agent in a process compiles the method again, which counts as a recompilation
    dynamo.recompile_limit = max(dynamo.recompile_limit, RECOMPILE_LIMIT)
    if workflow.device.type == "cuda":
        start_compilers()
    found: list[CompiledMethod] = []
    native = workflow.device.type == "cpu" and _only_ours(workflow)
    for module in workflow.modules():
        for name in marked(type(module), "compilable"):
            if module is workflow and name in except_for:
                continue
            found.append(CompiledMethod(getattr(module, name), native))
            object.__setattr__(module, name, found[-1])
    return found


def start_compilers() -> None:
    """Start the processes that compile kernels, which takes seconds.

    torch starts them at the first compilation, and until they are ready compiles one kernel after
    another. Its function for this is not public: a version without it starts them as late as ever.
    """
    import torch._inductor.async_compile as compilers

    getattr(compilers, "maybe_warm_pool", lambda: None)()


def _only_ours(workflow: Workflow[Any]) -> bool:
    """Return whether all modules are known to work where C++ calls the kernels.

    In torch 2.13 operations that C++ cannot call by itself (`_foreach_norm`) may end the process.
    """
    return all(type(m).__module__.startswith(("dreamlab.", "torch.")) for m in workflow.modules())


class CompiledMethod:
    """A compiled method; if not `enabled`, and in rehearsals, it runs uncompiled."""

    def __init__(self, method: Callable[..., Any], native: bool = False) -> None:
        self.method, self.enabled = method, True
        self.varying = bool(getattr(method, "is_varying_rows", False))
        from_cpp = native and getattr(method, "is_many_kernels", False)
        options: Any = {"cpp_wrapper": True} if from_cpp else None
        self.compiled = torch.compile(method, fullgraph=True, dynamic=False, options=options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.enabled or Rehearsal.on:
            return self.method(*args, **kwargs)
        if self.varying:
            for x in _tensors([*args, *kwargs.values()]):
                if x.ndim:
                    torch._dynamo.maybe_mark_dynamic(x, 0)
        return self.compiled(*args, **kwargs)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors in values, dictionaries, dataclasses and tuples, with little overhead."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif is_dataclass(value):
            yield from _tensors(vars(value).values())
