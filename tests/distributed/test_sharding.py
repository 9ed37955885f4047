"""Sharded weights: the same numbers as with whole ones, and no process has all of them."""

from __future__ import annotations

import io
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_module_registration_hook

from dreamlab import build
from dreamlab.cli import main
from dreamlab.config import LabConfig
from dreamlab.core import sharded_init, sharding, world
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.workflow import Workflow
from tests.distributed.ranks import run_ranks
from tests.distributed.test_equal_batches import Kept, _rows
from tests.helpers import config_of, metrics, open_loop

UPDATES = 20
TOLERANCE = 2e-5
"""Of losses and norms, relative: sums over processes are taken in another order."""
BASE = ("tiny=true", "device=cpu", "accel=off", "eval.episodes=1", "eval.every_frames=0",
        "eval.video=false", "threads=1")  # fmt: skip
UNET = (
    "workflow.policy={_target_: diffusion, obs_steps: 2, horizon: 8, execute: 4,"
    " net: {_target_: unet1d, widths: [16, 32], time_dim: 16}}"
)
CASES = {
    "dreamer": ("dreamer_cartpole", *BASE, "training.total_frames=300"),
    "dqn": ("dqn_cartpole", *BASE, "training.total_frames=300"),
    "tdmpc2": ("tdmpc2_pendulum", *BASE, "training.total_frames=300"),
    "unet": ("imitation_pendulum", *BASE, "eval.every_updates=0", UNET,
             "++workflow.optimizer.ema=0.99", "++workflow.optimizer.agc=0.3"),
}  # fmt: skip
SHARDED = ("distributed.processes=2", "distributed.shard=true", "distributed.shard_least=64")


def learnt(workflow: Workflow[Any], kept: Kept, rank: int) -> list[dict[str, float]]:
    """Return what each of some updates reports, every rank with its own windows."""
    ((phase, batches),) = list(kept.batches.values())[-1:]
    out: list[dict[str, float]] = []
    for i in range(UPDATES):
        batch = _rows(batches[i % len(batches)], slice(rank, None, 2))
        for hook in phase.update_hooks:
            result = getattr(workflow, hook)(batch, phase=phase)
            found = result[0] if isinstance(result, tuple) else result
            out.append({k: float(v) for k, v in found.items()})
    return out


def held(workflow: Workflow[Any]) -> dict[str, int]:
    """Return how many numbers a process holds of parameters, moments and averages."""
    opts = list(workflow.optimizers.values())
    moments = [x for o in opts for name in o.inner.names for x in getattr(o.inner, name)]
    averages = [x for o in opts for x in o.average]
    every: dict[str, list[torch.Tensor]] = {
        "weights": [*workflow.parameters()],
        "moments": moments,
        "averages": averages,
    }
    return {k: sum(x.numel() for x in sharding.parts(v)) for k, v in every.items()}


def compared(config: LabConfig, sharded: LabConfig, kept: Kept, rank: int) -> dict[str, Any]:
    """Learn with whole and with sharded weights; return what came of both."""
    spec = kept.loop.workflow.spec
    plain = build.build_workflow(config, spec)
    first = {k: v.clone() for k, v in plain.state_dict().items() if isinstance(v, torch.Tensor)}
    expected, whole = learnt(plain, kept, rank), held(plain)
    parts = build.build_workflow(sharded, spec)
    assert parts.sharded
    begun = sharding.whole_state(parts)
    if world.is_main():
        assert all(torch.equal(begun[k], v) for k, v in first.items()), "not the same start"
    found = learnt(parts, kept, rank)
    file = io.BytesIO()
    state = sharding.whole_state(parts)
    torch.save(state if rank == 0 else {}, file)
    return {"whole": whole, "part": held(parts), "expected": expected, "found": found,
            "state": file.getvalue(), "plain": plain.state_dict() if rank == 0 else {}}  # fmt: skip


def gap(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_sharded_weights_learn_the_same(name, tmp_path):
    loop = open_loop(tmp_path / "run", *CASES[name])
    kept = Kept(loop)
    loop.observers.add(kept)
    loop.run()
    plain = config_of(*CASES[name])
    two = config_of(*CASES[name], *SHARDED)
    ranks = run_ranks(lambda rank: compared(plain, two, kept, rank), tmp_path / "r")
    for rank in ranks:
        assert len(rank["found"]) >= UPDATES
        for a, b in zip(rank["expected"], rank["found"], strict=True):
            worst = max((gap(a[k], b[k]), k) for k in a if "loss" in k or "norm" in k)
            assert worst[0] < TOLERANCE, worst
        for kind, numbers in rank["whole"].items():
            assert rank["part"][kind] <= 0.8 * numbers, (kind, rank["part"][kind], numbers)
    state = torch.load(io.BytesIO(ranks[0]["state"]), weights_only=True)
    alone = build.build_workflow(plain, loop.workflow.spec)
    alone.load_state_dict(state)  # one process reads what two have written
    for key, value in alone.state_dict().items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            torch.testing.assert_close(value, ranks[0]["plain"][key], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["distributed.shard=true"], "shard has no effect with processes=1"),
        (["distributed.processes=2", "distributed.shard_least=5"], "without shard"),
        ([*SHARDED, "compile=true"], "compile"),
        ([*SHARDED, "log.norms=true"], "log.norms"),
        (["distributed.processes=2", "distributed.assemble=false"], "without shard"),
    ],
)
def test_what_does_not_go_with_shards_is_an_error(words, message):
    with pytest.raises(ConfigError, match=message):
        config_of("dreamer_cartpole", "tiny=true", *words)


DQN = ("dqn_cartpole", *BASE[:-1], "training.total_frames=152", "threads=1", *SHARDED[:2],
       "distributed.shard_least=16", "eval.every_frames=148", "checkpoint.every_s=0",
       "eval.num_envs=1", "eval.max_steps=5", "env.num_envs=8")  # fmt: skip


def sharded_run(folder: Path, *more: str, before: Any = None) -> list[Any]:
    """Return what each process of a run says, or the error that ends it."""

    def run(rank: int) -> Any:
        loop = open_loop(folder, *DQN, *more)
        if before is not None:
            before(loop, rank)
        said: list[str] = []
        loop.parts.terminal.say = said.append
        try:
            return loop.run(), said
        except LabError as error:
            return str(error), said

    return run_ranks(run, folder.parent / "ranks")


@pytest.mark.parametrize("assemble", [pytest.param(True, marks=pytest.mark.slow), False])
def test_rank_0_gathers_all_weights_to_evaluate_unless_told_not_to(assemble, tmp_path, monkeypatch):
    def gathered(workflow: Any) -> Any:
        pytest.fail("all weights are gathered")

    if not assemble:
        monkeypatch.setattr(sharding, "assembled", gathered)
    more = () if assemble else ("distributed.assemble=false",)
    (status, said), _ = sharded_run(tmp_path / "run", *more)
    assert status == "finished"
    records = metrics(tmp_path / "run")
    assert any("eval/return" in r for r in records) == assemble
    held, whole, saved = said[:3]
    assert held.startswith("sharded: this process holds")
    assert ("distributed.assemble=false: neither" in whole) == assemble
    assert "host memory on rank 0 while a checkpoint is written" in saved
    assert (tmp_path / "run" / "checkpoints" / "best").exists(), "else by the training's returns"


def test_plan_says_what_evaluating_sharded_weights_takes(capsys):
    words = ("dreamer_cartpole", "workflow.size=12m", *SHARDED[:2], "device=cpu")
    assert main(["plan", *words]) == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    weights = int(rows["parameters"].replace(",", ""))
    told = float(rows["evaluation"].split()[0])
    assert told == pytest.approx(4 * weights / 2**30, abs=1e-3)
    assert "distributed.assemble=false: neither" in rows["evaluation"]
    assert main(["plan", *words[:2], "distributed.processes=2"]) == 2
    assert "plan measures one process" in capsys.readouterr().err


def test_weights_that_are_not_sharded_are_compared(tmp_path):
    """`+preset=debug` compares what more than one process has, and says that it is not all."""

    def drift(loop: Any, rank: int) -> None:
        plain = [p for p in loop.workflow.parameters() if not hasattr(p, "part")]
        assert any(hasattr(p, "part") for p in loop.workflow.parameters())
        with torch.no_grad():
            plain[-1].add_(rank)

    for error, said in sharded_run(tmp_path / "run", "watch.check_every_update=true", before=drift):
        assert "of rank 1 is not that of rank 0" in error
        assert any("of the others no process has a second copy" in x for x in said) or not said


def held_of(p: Any) -> int:
    """Return how many numbers of a weight a process holds while a workflow is built."""
    p = getattr(p, "cut", getattr(p, "_local_tensor", p))
    return 0 if p.is_meta else p.numel()


def test_no_process_ever_holds_all_weights_while_it_builds(tmp_path):
    """Counted whenever a weight is registered: what has data, and the parts cut off before."""
    config = config_of(*CASES["tdmpc2"], *SHARDED)
    spec = open_loop(tmp_path / "run", *CASES["tdmpc2"]).workflow.spec
    alone = build.build_workflow(config_of(*CASES["tdmpc2"]), spec)
    every = sum(p.numel() for p in alone.parameters())

    def peak(rank: int) -> int:
        seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        most = 0

        def registered(module: Any, name: str, new: Any) -> None:
            nonlocal most
            if torch.get_default_device().type == "meta":
                return
            seen.update({module, new} if isinstance(new, torch.nn.Module) else {module})
            with torch._C.DisableTorchFunction():
                weights = {id(p): p for m in seen for p in m.parameters()}
                new_one = [new] if isinstance(new, torch.nn.Parameter) else []
                living = [*weights.values(), *(p for p in new_one if id(p) not in weights)]
                most = max(most, sum(map(held_of, living)))

        with sharded_init._heard(registered):
            handle = register_module_module_registration_hook(registered)
            build.build_workflow(config, spec)
            handle.remove()
        return most

    for most in run_ranks(peak, tmp_path / "r"):
        assert every / 2 <= most < 0.95 * every, (most, every)


@pytest.mark.slow
def test_a_sharded_run_is_resumed_and_read_by_one_process(tmp_path, capfd):
    words = ["dreamer_cartpole", *BASE, "training.total_frames=400", "log.every_frames=100",
             "distributed.processes=2", "distributed.shard=true", "distributed.shard_least=64",
             "watch.check_every_update=true"]  # fmt: skip
    folder = tmp_path / "r"
    assert main(["train", *words, f"run.dir={folder}"]) == 0
    assert main(["resume", str(folder), "training.total_frames=600"]) == 0
    assert metrics(folder)[-1]["env_frames"] >= 600
    held, every = re.findall(r"holds ([\d,]+) of ([\d,]+) weights", capfd.readouterr().out)[0]
    assert int(held.replace(",", "")) < 0.75 * int(every.replace(",", "")), "it is not sharded"
    assert main(["eval", str(folder), "--episodes", "1"]) == 0
