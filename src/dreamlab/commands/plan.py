"""`dreamlab plan`: estimate the cost of a run from a few seconds of training."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dreamlab.commands.arguments import cfg, check_trust, overrides, trust_code, verb
from dreamlab.core.errors import ConfigError
from dreamlab.core.text import print

if TYPE_CHECKING:
    from dreamlab.config import LabConfig

GIB = 2**30


@verb(
    "plan",
    "dreamlab plan dreamer_walker",
    "dreamlab plan dqn_pong buffers.replay.capacity=1_000_000 device=cpu",
)
@overrides
@cfg
@trust_code
def command(overrides: tuple[str, ...], cfg: bool, trust_code: bool) -> int:
    """Estimate the cost of a run before training it.

    Parameters, memory and disk in GiB, env frames, updates and the expected time, extrapolated from
    a few seconds of training in a scratch folder on this machine.
    """
    from dreamlab.config import compose, load_config, to_yaml

    check_trust(overrides, trust_code)
    config = load_config(compose(overrides))
    if cfg:
        print(to_yaml(config), end="")
        return 0
    for name, value in _costs(config):
        print(f"{name:16s} {value}")
    return 0


def _costs(config: LabConfig) -> list[tuple[str, str]]:
    """Return the rows of the table."""
    from dreamlab import build
    from dreamlab.core.words import duration
    from dreamlab.engine.plan import GPU_ROW, make_plan
    from dreamlab.engine.terminal import Terminal
    from dreamlab.engine.watch import disk_free, memory_available
    from dreamlab.runs.run import Run

    if config.actors.num:
        raise ConfigError("actors: plan measures one process: leave them out")
    if config.distributed.shard:
        return _of_shards(config)
    if config.processes > 1:
        raise ConfigError(
            "distributed.processes, devices: plan measures one process, whose figures are those of "
            "each: leave them out"
        )
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(Path(scratch) / "run")
        run.folder.mkdir()
        loop = build.build(config, run, Terminal("off", config.name))
        sizes = {
            k: build.buffer_bytes(p, loop.workflow, config.env.num_envs)
            for k, p in config.buffers.items()
        }
        result = make_plan(loop, sizes)
        stored = {
            k: getattr(getattr(b, "config", None), "storage", "ram")
            for k, b in loop.parts.buffers.items()
        }
    gpu = [(GPU_ROW, f"{result.gpu_bytes / GIB:.3f} GiB")] if result.gpu_bytes else []
    free, speed = disk_free(Path.cwd()), result.decisions_per_s
    return [
        ("parameters", f"{result.parameters:,}"),
        *(
            (f"buffer {k}", f"{v / GIB:.3f} GiB when full, in {stored[k]}")
            for k, v in sizes.items()
        ),
        *gpu,
        ("memory free", f"{memory_available() / GIB:.1f} GiB"),
        ("disk", f"{result.disk_bytes / GIB:.3f} GiB of {free / GIB:.1f} GiB free"),
        ("one tick", f"{1e3 * result.tick_s:.2f} ms ({speed:,.0f} decisions/s)"),
        ("one update", f"{1e3 * result.update_s:.2f} ms"),
        ("env frames", f"{result.env_frames:,}"),
        ("updates", f"{result.updates:,.0f}"),
        ("expected time", duration(3600 * result.hours)),
    ]


def _of_shards(config: LabConfig) -> list[tuple[str, str]]:
    """Return the memory that sharded weights need; nothing is computed, so no times."""
    import torch

    from dreamlab import build
    from dreamlab.core import rng, sharding
    from dreamlab.engine.shards import cost_of_whole
    from dreamlab.engine.watch import memory_available

    build.check(config)
    spec = build.find_spec(config)
    with rng.fork(0), torch.device("meta"):
        workflow = config.workflow.build(spec)
    whole, saved = cost_of_whole(workflow, config.distributed.assemble)
    share = sharding.state_bytes(workflow) / config.processes / GIB
    return [
        ("parameters", f"{sum(p.numel() for p in workflow.parameters()):,}"),
        ("each process", f"at least {share:.3f} GiB of weights and optimizer states"),
        ("evaluation", whole),
        ("checkpoint", saved),
        ("memory free", f"{memory_available() / GIB:.1f} GiB"),
        ("not measured", "batches, activations, replay buffers, time: leave distributed out"),
    ]
