"""Run by test_traced.py in a process of its own: type checks at run time confuse the compiler.

Every method that would be compiled on a GPU goes through the compiler's front end with the settings
of a run, in the form that a GPU computes; only the machine code is left out.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager

from dreamlab.accel.bf16_weights import Bf16Weights
from dreamlab.accel.compile import CompiledMethod, compile_methods, compile_updates
from dreamlab.accel.cuda_graphs import lay_out
from dreamlab.components.world_models.dreaming import fusable, output_of
from dreamlab.core import world
from dreamlab.core.types import Batch, Mode
from dreamlab.core.workflow import Workflow, marked
from dreamlab.core.world import World
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.workflows.dreamer_v3 import DreamerV3
from dreamlab.workflows.tdmpc2 import TDMPC2
from tests.accel import gpu_form
from tests.contract.found import PAIRS
from tests.contract.test_workflows import make
from tests.helpers import open_loop

SCAN = (
    "tiny=false", "workflow.size=null",
    "workflow.rssm={deter: 64, hidden: 16, stoch: 4, classes: 4, blocks: 2}",
    "workflow.encoder={units: 16, depth: 2}", "workflow.decoder={units: 16, depth: 2, blocks: 2}",
    "workflow.reward={units: 16, num_bins: 15}", "workflow.cont.units=16",
    "workflow.actor.units=16", "workflow.critic={units: 16, num_bins: 15}",
    "workflow.imagine=3", "buffers.replay.batch=2",
    "buffers.replay.length=5", "buffers.replay.min_steps=40", "buffers.replay.capacity=1000",
)  # fmt: skip
"""Sizes that the kernels of the recurrence take."""
PLANS = ("workflow.planner.samples=32", "workflow.planner.elites=4")
"""As many as the kernels of TD-MPC2's plans take."""
ONE_BY_ONE = "-one_by_one"
"""After a name: with plans that the kernels do not take, so that networks are called one by one."""
OF_TWO = "-of_two"
"""After a name: as one of two processes, which average gradients and share statistics."""


def unchecked_quantile(x: Tensor, q: Tensor) -> Tensor:
    """Return what torch.quantile does; older versions look at `q`, on a CPU only."""
    rank = q * (x.shape[0] - 1)
    ranked, below = x.sort().values, rank.floor()
    return torch.lerp(ranked[below.long()], ranked[rank.ceil().long()], rank - below)


def front_end_only(patch: pytest.MonkeyPatch, reductions: set[str]) -> dict[Any, int]:
    """Let torch.compile stop before it makes code; return how often each method was traced.

    The names of methods that communicate with other processes are added to `reductions`.
    """
    whole, traced = torch.compile, dict[Any, int]()

    def compiled(method: Any, **settings: Any) -> Any:
        traced[method] = 0

        def backend(graph: Any, inputs: Any) -> Any:
            traced[method] += 1
            if any("all_reduce" in str(node.target) for node in graph.graph.nodes):
                reductions.add(method.__name__)
            return aot_eager(graph, inputs)

        settings.pop("options", None)  # of the code that is not made
        return whole(method, backend=backend, **settings)

    patch.setattr(torch, "compile", compiled)
    return traced


def prepared(loop: Orchestrator) -> Batch:
    """Return a batch to learn from, collected by the loop."""
    buffer = loop.parts.buffers[loop.scheduler.phase.buffer]
    while not buffer.ready():
        loop._do("collect")
    return buffer.sample().map(lambda x: x.clone())


@contextmanager
def one_of_two(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Let this process, alone in its group, believe that there is another one."""
    store = dist.FileStore(str(folder / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        with patch.context() as within:
            within.setattr(world, "_here", World(0, 2, 0, 2))
            yield
    finally:
        dist.destroy_process_group()


def captured(
    loop: Orchestrator, batch: Batch, patch: pytest.MonkeyPatch, bf16: bool
) -> list[CompiledMethod]:
    """Run what a GPU would capture, its compiled methods traced."""
    agent = loop.workflow
    launched = gpu_form.take(patch)
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        patch.setattr(torch, "quantile", unchecked_quantile)
    methods = compile_methods(agent, except_for=marked(type(agent), "capturable"))
    layout = lay_out(agent, bf16)
    first, obs = batch.is_first[:, 0], {k: v[:, 0] for k, v in batch.obs.items()}
    with ExitStack() as stack:
        if bf16:
            stack.enter_context(torch.autocast("cpu", torch.bfloat16, cache_enabled=False))
            stack.enter_context(Bf16Weights(agent, layout).swapped_in())
        agent.update(replace(batch, index=None))
        with torch.no_grad():
            agent.decide(obs, first, agent.initial_state(len(first)), Mode.TRAIN)
    assert launched >= wanted_kernels(agent, bf16)
    idle = {"read_action", "follow_step", "replay_guess", "replay_losses", "dream_step"}
    idle = (idle | {"dream_action", "pack"}) - used_methods(agent, bf16)
    return [m for m in methods if m.method.__name__ not in idle]


def dreams_at_once(agent: DreamerV3, bf16: bool) -> bool:
    """Return whether the kernels of a dream are launched."""
    return bf16 and agent.config.actor_grad == "reinforce" and fusable(agent.model, agent.actor)


def wanted_kernels(agent: Workflow[Any], bf16: bool) -> set[str]:
    """Return the kernels that an update launches."""
    fused = any(opt.fused for opt in agent.optimizers.values())
    wanted = {"step_kernel"} if fused else set[str]()
    if isinstance(agent, TDMPC2) and agent.packable:
        wanted |= {"plan_value_out_kernel", "tell_kernel"}
    if not isinstance(agent, DreamerV3):
        return wanted
    if agent.model.rssm.scannable:
        wanted.add("hidden_kernel")
    if dreams_at_once(agent, bf16):
        wanted.add("dream_prior_kernel")
    if agent.config.actor_grad == "reinforce":  # returns carry no gradient
        wanted.add("recurrence_kernel")
    return wanted


def used_methods(agent: Workflow[Any], bf16: bool) -> set[str]:
    """Return the methods that only some agents call, if this one does."""
    if isinstance(agent, TDMPC2) and agent.packable:
        return {"pack"}
    if not isinstance(agent, DreamerV3):
        return set()
    found = {"replay_guess", "replay_losses"} if agent.config.scales.repval else set[str]()
    if not dreams_at_once(agent, bf16):
        found.add("dream_step")
    elif output_of(agent.model, agent.actor) is None:
        found.add("dream_action")
    return found | ({"read_action"} if agent.model.rssm.scannable else {"follow_step"})


def updated(loop: Orchestrator, batch: Batch) -> list[CompiledMethod]:
    """Run two whole updates, traced: TD3's actor learns in every second one."""
    agent, phase = loop.workflow, loop.scheduler.phases[-1]
    methods = compile_updates(agent)
    for name in phase.update_hooks * 2:
        getattr(agent, name)(batch, phase=phase)
    return methods


def trace(name: str, folder: Path, precision: str) -> None:
    """Fail unless all methods of an experiment's workflow can be traced."""
    torch._dynamo.reset()
    two, name = name.endswith(OF_TWO), name.removesuffix(OF_TWO)
    single, name = name.endswith(ONE_BY_ONE), name.removesuffix(ONE_BY_ONE)
    reductions: set[str] = set()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        traced = front_end_only(patch, reductions)
        cls = next(cls for cls, each in PAIRS if each == name)
        graphs = bool(marked(cls, "capturable"))
        recurrent = graphs and hasattr(cls.Config, "imagine")
        plans = issubclass(cls, TDMPC2) and precision == "bf16" and not single
        options = PLANS if plans else ()
        loop = make(folder, name, options=SCAN if recurrent else options)
        assert not issubclass(cls, TDMPC2) or loop.workflow.packable is plans
        batch = prepared(loop)
        if two:
            stack.enter_context(one_of_two(patch, folder))
        if graphs:
            methods = captured(loop, batch, patch, precision == "bf16")
        else:
            methods = updated(loop, batch)
        assert {m.method for m in methods} <= traced.keys()
        assert methods
        left = [m.method.__name__ for m in methods if not traced[m.method]]
        assert not left, left
    assert bool(reductions) == two, reductions


def varying_rows(folder: Path) -> None:
    """Fail unless PPO's minibatches, each of another size, are compiled once for all."""
    torch._dynamo.reset()
    sizes: set[int] = set()
    with pytest.MonkeyPatch.context() as patch:
        traced = front_end_only(patch, set())
        options = ("compile=true", "device=cpu", "workflow.epochs=1", "eval.every_frames=0")
        loop = open_loop(folder, "+experiment=ppo_cartpole", *options, "training.total_frames=6000")
        agent: Any = loop.workflow
        prepare = agent.prepare

        def counted(batch: Batch) -> Any:
            samples = prepare(batch)
            sizes.add(len(samples.action))
            return samples

        object.__setattr__(agent, "prepare", counted)
        assert loop.run() == "finished"
    assert len(sizes) > 8, sizes  # as often as the compiler would try, left to itself
    assert list(traced.values()) == [1]


def main(folder: str, precision: str, *names: str) -> None:
    # what one version of the compiler warns of, another refuses
    warnings.filterwarnings("error", message="Dynamo")
    for name in names:
        place = Path(folder) / name
        varying_rows(place) if name == "varying_rows" else trace(name, place, precision)
    print("same")


if __name__ == "__main__":
    main(*sys.argv[1:])
