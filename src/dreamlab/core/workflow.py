"""The interface between an algorithm and the engine that runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from dreamlab.core.config import Part
from dreamlab.core.optim import OptimConfig, Optimizer
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Report, Spec, Step, Tree

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


def hook(method: F) -> F:
    """Mark a method as callable from a phase, under its own name.

    A hook takes a Batch and the phase; it returns metrics, or metrics and extras [b, t] to write
    back into the buffer at the last t steps of `batch.index`. Before it runs, scheduled optimizers
    are set to the progress of training.
    """

    @wraps(method)
    def called(self: Workflow[Any], batch: Batch, *, phase: Phase) -> Any:
        for opt in self.optimizers.values():
            opt.at(phase.progress)
        return method(self, batch, phase=phase)

    called.is_hook = True  # type: ignore[attr-defined]
    return cast(F, called)


def compilable(method: F) -> F:
    """Mark a method, of a workflow or of a module in it, to be compiled separately.

    It takes and returns tensors (in dataclasses and dictionaries), changes nothing but parameters,
    buffers and optimizers, and never reads a tensor's value.
    """
    method.is_compilable = True  # type: ignore[attr-defined]
    return method


def varying_rows(method: F) -> F:
    """Mark a compilable method with a varying number of rows: compile with dynamic shapes."""
    method.is_varying_rows = True  # type: ignore[attr-defined]
    return method


def many_kernels(method: F) -> F:
    """Mark a compilable method of many short kernels: on a CPU, what calls them is compiled too."""
    method.is_many_kernels = True  # type: ignore[attr-defined]
    return method


def capturable(method: F) -> F:
    """Mark a workflow's method whose kernels a GPU may capture once and then replay.

    The rules of a compilable method apply; its non-tensor arguments select the graph to replay. Its
    Python code runs during the capture only.
    """
    method.is_capturable = True  # type: ignore[attr-defined]
    return method


def marked(cls: type, mark: str) -> list[str]:
    """Return the names of a class's methods with this mark."""
    return [n for n in dir(cls) if getattr(getattr(cls, n, None), f"is_{mark}", False)]


class Workflow(nn.Module, ABC, Generic[C]):
    """An algorithm: how to act, and what one update of each kind does. It owns no loop.

    All its parameters, buffers and optimizers are saved and restored automatically. A number that
    must survive a restart (a count, a running mean) must be a registered buffer.
    """

    Config: ClassVar[type]
    tiny: ClassVar[dict[str, Any]] = {}
    """Options of the smallest working version, for debugging and tests."""
    plans: ClassVar[bool] = False
    """Whether it plans and also has a policy that can act without planning."""
    reads_padding: ClassVar[bool] = False
    """Whether it masks the steps that a window repeats beyond its episode (`pad: edge`)."""
    least_length: ClassVar[int] = 1
    """Steps that a window must have for an update."""
    within_episodes: ClassVar[bool] = False
    """Whether it takes a window for steps of one episode (`windows: inside`)."""
    sharded = False
    """Whether each process keeps only a part of every weight."""
    former_names: ClassVar[dict[str, str]] = {}
    """Renamed state of older checkpoints: old name to new name."""

    def __init__(self, config: C, spec: Spec) -> None:
        super().__init__()
        self.config = config
        self.spec = spec
        self.optimizers: dict[str, Optimizer] = {}
        self.build(spec)

    @abstractmethod
    def build(self, spec: Spec) -> None:
        """Create modules and optimizers for this observation and action spec."""

    @abstractmethod
    def decide(self, obs: Obs, is_first: Tensor, state: Tree, mode: Mode) -> Decision:
        """Choose an action [n, ...] for observations [n, ...] on the workflow's device.

        `state` is that of the last decision. This method is captured, compiled and exported: it
        takes and returns tensors. In `Mode.FIXED` it draws no random numbers, and the returned
        state may omit what acting does not need.
        """

    def act(self, step: Step, state: Tree, mode: Mode) -> Decision:
        """Choose an action for each environment; `state` is that of the last decision."""
        is_first, device = torch.from_numpy(step.is_first), self.device
        if device.type != "cpu":
            is_first = is_first.to(device, non_blocking=True)
        with torch.no_grad():  # as a decorator it takes twice as long
            return self.decide(self.obs_tensors(step), is_first, state, mode)

    def obs_tensors(self, step: Step) -> Obs:
        """Return the observations of a step on the workflow's device."""
        obs = {k: torch.from_numpy(v) for k, v in step.obs.items()}
        if (device := self.device).type == "cpu":
            return obs
        return {k: v.to(device, non_blocking=True) for k, v in obs.items()}

    def blind_to_ends(self) -> str:
        """Return what to do if episodes terminate and it cannot learn that; empty if it can."""
        return ""

    def rehearse(self, batch: Batch) -> None:
        """Call what launches kernels in a captured update of batches like this.

        On a GPU this is called once before the first update, and kernels are not launched but
        built in parallel; random numbers may be drawn. Without it they are built when needed.
        """

    def fill(self, step: Step, state: Tree) -> Decision:
        """Return a decision whose action `with_action` will replace by a random one.

        Override this if decisions are expensive.
        """
        return self.act(step, state, Mode.TRAIN)

    def expected_return(self, obs: Obs) -> tuple[Tensor, Tensor] | None:
        """Return the expected discounted return [n] of observations, and the discount.

        None if unavailable; otherwise evaluations compare it with the actual return.
        """
        return None

    def with_action(self, decision: Decision, action: Tensor) -> Decision:
        """Return the decision with another action, for random exploration."""
        return replace(decision, action=action)

    def decided(self, num: int) -> None:
        """Account for decisions made by copies of this workflow in other processes.

        Override this if acting changes the workflow's state (a count of decisions).
        """

    def rows_per_step(self, steps: int) -> int:
        """Return the rows per gradient step for a batch of `steps` replayed steps."""
        return steps

    def initial_state(self, num_envs: int) -> Tree:
        """Return the initial state for act()."""
        return ()

    def report(self, batch: Batch) -> Report | None:
        """Return diagnostics on a batch; None if there are none."""
        return None

    def optimizer(
        self, name: str, params: Iterable[nn.Parameter], config: OptimConfig | Part
    ) -> Optimizer:
        """Create an optimizer whose state is saved and restored under `name`.

        Its groups refer to parameter names in this workflow.
        """
        names = {id(p): n for n, p in self.named_parameters()}
        self.optimizers[name] = Optimizer(config, params, names)
        return self.optimizers[name]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Act with averaged weights inside the block, if an optimizer keeps an average."""
        with ExitStack() as stack:
            for opt in self.optimizers.values():
                stack.enter_context(opt.averaged())
            yield

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters and buffers."""
        # the tensor is looked up once, its device each time: a workflow may move
        if "anchor" not in self.__dict__:
            held = chain(self.parameters(), self.buffers())  # one without parameters has buffers
            object.__setattr__(self, "anchor", next(held))
        return self.__dict__["anchor"].device

    @classmethod
    def hooks(cls) -> dict[str, Callable[..., Any]]:
        """Return the methods a phase may call, by name."""
        return {n: getattr(cls, n) for n in marked(cls, "hook")}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a saved state, also of older versions with other names."""
        state = {self.former_names.get(k, k): v for k, v in state_dict.items()}
        return super().load_state_dict(state, strict, assign)

    def get_extra_state(self) -> dict[str, Any]:
        return {name: opt.state_dict() for name, opt in self.optimizers.items()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name, opt in self.optimizers.items():
            opt.load_state_dict(state[name])


__all__ = ["Batch", "Decision", "Metrics", "Mode", "Phase", "Spec", "Step", "Workflow", "hook"]
