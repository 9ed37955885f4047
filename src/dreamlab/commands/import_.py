"""`dreamlab import`: import a checkpoint of the official DreamerV3, TD-MPC2 or LeRobot."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from dreamlab.commands.arguments import Place, argument, check_trust, overrides, trust_code, verb
from dreamlab.core.errors import LabError, unknown
from dreamlab.core.files import disk_errors
from dreamlab.core.text import print

PROGRAMS = {
    "dreamerv3": "dreamlab.interop.import_run",
    "tdmpc2": "dreamlab.interop.import_tdmpc2",
    "lerobot": "dreamlab.interop.import_lerobot",
}
"""The module that reads the checkpoints of each program."""


@verb(
    "import",
    "dreamlab import dreamerv3 ~/logdir/crafter env=crafter run.dir=experiments/imported",
    "dreamlab import dreamerv3 agent.pkl dreamer_walker env.id=walker_run",
    "dreamlab import tdmpc2 walker-run-1.pt tdmpc2_dmc_proprio env.id=walker_run",
    "dreamlab import lerobot checkpoints/last/pretrained_model env=pusht env.options.obs=pixels",
)
@argument("program", "source of the checkpoint: dreamerv3, tdmpc2 or lerobot", metavar="PROGRAM")
@argument(
    "path",
    "dreamerv3: an agent.pkl, an .npz, or a folder with one; tdmpc2: a .pt; lerobot: a folder",
    type=Place(),
    metavar="PATH",
)
@overrides
@trust_code
def command(program: str, path: Path, overrides: tuple[str, ...], trust_code: bool) -> int:
    """Import a checkpoint of the official DreamerV3, TD-MPC2 or LeRobot as a run.

    `eval` and `resume` work on it. The network sizes are read from the weights; you name the
    environment. No code in the checkpoint is executed.
    """
    if program not in PROGRAMS:
        raise LabError(unknown("program to import from", program, PROGRAMS, "import"))
    from dreamlab import build, training

    import_run = import_module(PROGRAMS[program])
    check_trust(overrides, trust_code)
    weights = import_run.read_weights(path)
    config = import_run.config_for(weights, overrides)
    if config.run.dir and (Path(config.run.dir) / "config.yaml").exists():
        raise LabError(f"{config.run.dir} already contains a run: choose another run.dir")
    import_run.check_fit(weights, config)
    with disk_errors("Choose another run.dir"), training.open_run(config) as opened:
        run = opened.run
        if opened.found:  # another process created it meanwhile
            raise LabError(f"{run.folder} already contains a run: choose another run.dir")
        loop = build.build(opened.config, run)
        moments = import_run.fill(loop.workflow, weights)
        loop.save()
        opened.keep()
        run.event("imported", source=str(path), optimizer=moments)
        run.update(status="imported")
    print(f"imported {'with' if moments else 'without'} optimizer state: {run.folder}")
    return 0
