"""Builds a sharded workflow without ever holding all weights in one process, from its seed.

It is built twice. On the meta device, where nothing is allocated, it records how many parameters
exist at the last use of each one; then for real, keeping only this process's part of each parameter
as soon as that count is exceeded. Random numbers are drawn in the usual order. Finally the modules,
by then without data on the meta device, are given to `fully_shard`, and their parts to them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dreamlab.core import rng, sharding, world
from dreamlab.core.errors import ConfigError
from dreamlab.core.workflow import Workflow

W = TypeVar("W", bound=Workflow[Any])
READ_ELSEWHERE = (nn.RNNBase, nn.ParameterList, nn.ParameterDict)
"""Modules whose weights are not read by the attributes of the module that is called."""


class _Following(TorchFunctionMode):
    """Tracks all uses of parameters, in the order of their registration.

    Reading a parameter's attributes counts too: some functions do nothing on the meta device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, int] = {}
        """Index of the parameter in a storage."""
        self.last: list[int] = []
        """For each parameter, the number of parameters at its last use."""

    def registered(self, module: nn.Module, name: str, p: Any) -> None:
        """Track a new parameter."""
        if p is not None:
            self.places[_place(p)] = len(self.last)
            self.last.append(len(self.last) + 1)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for x in tree_leaves((args, kwargs)):
            number = self.places.get(_place(x)) if isinstance(x, Tensor) else None
            if number is not None:
                self.last[number] = len(self.last)
        return func(*args, **(kwargs or {}))


def _place(x: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return x.untyped_storage()._cdata


class _Guard(TorchFunctionMode):
    """Raises if a parameter without data is computed with: on the meta device nothing happens."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        if name not in ("__get__", "requires_grad_"):  # the memo of a copy has cut weights
            for x in tree_leaves(args[0] if name == "__deepcopy__" else (args, kwargs)):
                assert not hasattr(x, "cut"), f"{name} needs a weight that was cut"
        return func(*args, **(kwargs or {}))


class _Cutting:
    """Cuts each parameter once a later one is registered after its last use."""

    def __init__(self, last: list[int], cut: sharding.Cut) -> None:
        self.due: dict[int, list[int]] = {}
        for number, moment in enumerate(last):
            self.due.setdefault(moment, []).append(number)
        self.cut = cut
        self.seen: list[tuple[nn.Module, nn.Parameter] | None] = []

    def registered(self, module: nn.Module, name: str, p: Any) -> None:
        """Cut finished parameters, and record the new one."""
        if p is None:
            return
        for number in self.due.get(len(self.seen), ()):
            found, self.seen[number] = self.seen[number], None
            if found is not None:
                _drop_data(*found, self.cut)
        # a workflow's own weights are read by its methods
        self.seen.append(None if isinstance(module, Workflow) else (module, p))


def _drop_data(module: nn.Module, p: nn.Parameter, cut: sharding.Cut) -> None:
    """Replace the data of a parameter in place by this process's part, if it is to be sharded."""
    with torch._C.DisableTorchFunction():
        part = cut(p)
        if part is not None and not hasattr(p, "cut"):
            _check_module(module)
            torch.utils.swap_tensors(p, sharding.without_data(p, part))


@contextmanager
def _heard(registered: Any) -> Iterator[None]:
    handle = register_module_parameter_registration_hook(registered)
    try:
        yield
    finally:
        handle.remove()


def build_sharded(make: Callable[[], W], least: int, device: torch.device) -> W:
    """Build a workflow on a device, its parameters of at least `least` entries sharded."""
    follow = _Following()
    try:
        with rng.fork(0), torch.device("meta"), _heard(follow.registered), follow:
            make()
    except (RuntimeError, NotImplementedError) as error:
        raise ConfigError(
            "distributed.shard: this workflow cannot be built on the meta device, where nothing is "
            f"computed: {error}"
        ) from error
    cut = _cutter(least)
    with _heard(_Cutting(follow.last, cut).registered), sharding.cutting(cut), _Guard():
        built = make()
    built._apply(lambda x: x if x.is_meta else x.to(device))
    shard_module(built, least, device)
    for opt in built.optimizers.values():
        parts: Any = sharding.parts(opt.params)
        opt.sources = sharding.sharded(opt.params)
        opt.params[:] = parts  # the list is that of its rule, too
    return built


# -- the units ------------------------------------------------------------------------------------


def _placement(p: Tensor) -> Any:
    """Return the dimension to split: the first that is divisible, else the first with padding."""
    from torch.distributed.tensor import Shard

    even = (i for i, n in enumerate(p.shape) if n % world.all_processes() == 0)
    return Shard(next(even, 0))


def _cutter(least: int) -> sharding.Cut:
    """Return a function that returns this process's part of a parameter; None if it is small."""

    def cut(p: nn.Parameter) -> Tensor | None:
        if hasattr(p, "cut"):
            return p.cut  # type: ignore[return-value]
        return sharding.cut(p, _placement(p)) if p.numel() >= least and p.ndim else None

    return cut


def shard_module(root: nn.Module, least: int, device: torch.device) -> None:
    """Shard the parameters with at least `least` entries of all modules inside `root`."""
    from torch.distributed.fsdp import fully_shard

    cut, mesh = _cutter(least), world.mesh(device.type)
    for module in root.modules():
        for p in module.parameters(recurse=False):
            if module is not root:
                _drop_data(module, p, cut)
    rest = {p for p in root.parameters() if not hasattr(p, "cut")}
    inside = {m for unit in root.modules() if _reads_children(unit) for m in unit.modules()}
    for module in reversed(list(root.modules())):  # those inside of others first
        if getattr(module, "inplace", False):  # would drop the hooks of `fully_shard`
            module.inplace = False  # type: ignore[assignment]
        if _reads_children(module) or module not in inside:
            _shard_unit(module, rest, mesh)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    tree = _Tree(root)
    fully_shard(tree, mesh=mesh, ignored_params=rest)
    tree()


def _reads_children(module: nn.Module) -> bool:
    """Return whether a module reads the weights of those in it, so that they are one unit."""
    return isinstance(module, nn.MultiheadAttention) or getattr(module, "reads_children", False)


def _check_module(module: nn.Module) -> None:
    """Raise if a module's weights are not read where `fully_shard` gathers them."""
    if isinstance(module, READ_ELSEWHERE):
        raise ConfigError(f"distributed.shard: {type(module).__name__} cannot be sharded")
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        raise ConfigError("distributed.shard: an embedding with max_norm cannot be sharded")


def _shard_unit(module: Any, rest: set[nn.Parameter], mesh: Any) -> None:
    """Give a module without data to `fully_shard`, then its parts to it.

    Weights are gathered in `forward` and in its `weight_methods`.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    named = module.named_parameters(recurse=_reads_children(module))
    before: Any = {n: p for n, p in named if p not in rest}
    if not before:
        return
    if any(hasattr(p, "sharded") for p in before.values()):
        raise ConfigError(
            f"distributed.shard: {type(module).__name__} shares a weight with another module"
        )
    unit = fully_shard(
        module, mesh=mesh, reshard_after_forward=True, shard_placement_fn=_placement,
        ignored_params=rest,
    )  # fmt: skip
    unit.set_modules_to_backward_prefetch([unit])  # the module before may not be in this loss
    if mesh.device_type == "cpu":  # where not every version of gloo averages
        unit.set_force_sum_reduction_for_comms(True)
    for method in getattr(module, "weight_methods", ()):
        register_fsdp_forward_method(module, method)
    state = {n: sharding.spread_like(module.get_parameter(n), p.cut) for n, p in before.items()}
    module.load_state_dict(state, strict=False, assign=True)
    for name, p in before.items():
        new: Any = module.get_parameter(name)
        new.unit, new.part = module, new.to_local().detach()
        new.part.owner = new
        p.sharded, p.part = new, new.part  # optimizers and target networks know the former one
        del p.cut


class _Tree(nn.Module):
    """Makes all units one tree, so that each backward pass resets the state of all of them."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.root = root

    def forward(self) -> None:
        """Do nothing: a tree is initialized when it is called first."""
