"""`dreamlab export-policy`: export a policy to ONNX, TorchScript or a model hub."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dreamlab.commands.arguments import (
    POSITIVE,
    POSITIVE_INT,
    Place,
    checkpoint,
    run_folder,
    trust_code,
    verb,
)
from dreamlab.core.errors import ConfigError
from dreamlab.core.files import disk_errors
from dreamlab.core.text import print

if TYPE_CHECKING:
    from dreamlab.core.affine import Affine
    from dreamlab.envs.vector import EnvConfig
    from dreamlab.export.policy_export import Actions
    from dreamlab.export.policy_files import Format, Parity, Runner
    from dreamlab.training import Trained


@dataclass(frozen=True)
class Options:
    """Options of `dreamlab export-policy`."""

    folder: Path
    format: Format
    checkpoint: str
    out: Path | None
    batch: int | None
    tolerance: float
    hub: Path | None
    push: str | None
    private: bool
    trust_code: bool


@verb(
    "export-policy",
    "dreamlab export-policy experiments/first --format onnx",
    "dreamlab export-policy experiments/first --hub my-policy --push OWNER/NAME --private",
)
@run_folder("a run directory, a hub folder, or hub:OWNER/NAME[@REVISION]")
@click.option(
    "--format", type=click.Choice(["onnx", "torchscript"]), default="onnx", help="Export format."
)
@checkpoint
@click.option("--out", type=Place(), help="Output file; default: FOLDER/export/policy.*")
@click.option("--batch", type=POSITIVE_INT, help="Fixed batch size; default: dynamic.")
@click.option(
    "--tolerance",
    type=POSITIVE,
    default=1e-4,
    help="Largest allowed difference from the original policy.",
)
@click.option("--hub", type=Place(), help="Write a folder for a model hub instead.")
@click.option("--push", metavar="OWNER/NAME", help="Upload that folder to Hugging Face.")
@click.option("--private", is_flag=True, help="Make the pushed repository private.")
@trust_code
def command(**given: Any) -> int:
    """Export a run's policy and verify it against the original."""
    from dreamlab import training
    from dreamlab.export import hub
    from dreamlab.interop import strangers

    options = Options(**given)
    options = replace(options, folder=hub.resolve(options.folder))
    if not (options.folder / "config.yaml").exists():
        raise ConfigError(f"{options.folder} is not a run directory: it has no config.yaml")
    if options.private and not options.push:
        raise ConfigError("export-policy: --private has no effect without --push OWNER/NAME")
    to_hub = options.hub or options.push
    if hub.is_hub(options.folder) and not (options.out or to_hub):
        raise ConfigError("export-policy: hub folders are read-only: add --out FILE")
    trained = training.load_policy(options.folder, options.checkpoint, options.trust_code)
    with disk_errors(every=True), strangers.guarded(options.folder, options.trust_code):
        return _export_to_hub(trained, options) if to_hub else _export(trained, options)


def _export_to_hub(trained: Trained, options: Options) -> int:
    from dreamlab.export import hub
    from dreamlab.runs.run import Run

    env, frames = trained.config.env.id, trained.env_frames
    source = f"hub:{options.push}" if options.push else "FOLDER"
    about = {"env": env, "frames": frames, "source": source}
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = options.hub or Path(scratch) / "policy"
        run, workflow = Run(options.folder), trained.workflow
        hub.write_hub(folder, run, trained.config, workflow, trained.statistics, about)
        if options.hub:
            print(f"hub folder {folder}")
        if options.push:
            message = f"{type(workflow).__name__} on {env}, {frames:,} env frames"
            url = hub.push(folder, options.push, message, private=options.private)
            print(f"pushed to  {url}\nevaluate:  dreamlab eval {source}")
    return 0


def _export(trained: Trained, options: Options) -> int:
    import torch

    from dreamlab.core.affine import ACTION
    from dreamlab.envs.vector import Envs, make_env
    from dreamlab.export import policy_export as exporting
    from dreamlab.export import policy_files as files
    from dreamlab.runs.run import Run
    from dreamlab.training import scaling_of

    torch.set_num_threads(1)  # one row at a time is too little work for several threads
    env = trained.config.env
    wrapper = exporting.action_wrapper(make_env(env, 0, 0))
    normalize = exporting.Normalize(env.normalize_obs, trained.statistics)
    workflow = trained.workflow.cpu().eval()
    data = scaling_of(trained.statistics).get(ACTION)
    actions = exporting.actions_of(wrapper) if data is None else _of_data(env, data)
    policy = exporting.Exported(workflow, normalize, actions, options.batch)
    path: Path = options.out or options.folder / "export" / f"policy{files.SUFFIX[options.format]}"

    def check(run_file: Runner) -> Parity:
        rows = policy.batch or 1
        raw = replace(env, num_envs=rows, vector="sync", normalize_obs=None)
        envs = Envs(raw, 0, {} if data is None else {ACTION: data})
        steps = files.record(policy, workflow, envs, 64)
        envs.close()
        taken = wrapper.action if wrapper is not None else lambda a: a
        taken = taken if data is None else envs.unscaled
        return files.compare(policy, run_file, workflow, steps, taken)

    parity = files.write_checked(policy, path, options.format, check, options.tolerance)
    manifest = Run(options.folder).manifest
    about = {
        "run": manifest.get("id"), "env": env.id, "env_frames": trained.env_frames,
        "versions": manifest.get("versions"), "max_difference": parity.worst,
    }  # fmt: skip
    beside = files.write_metadata(path, policy, options.format, about)
    print(f"file            {path}\nmetadata        {beside}")
    print(f"inputs          {', '.join(policy.inputs)}")
    print(f"outputs         {', '.join(policy.outputs)}")
    forced = policy.batch != options.batch
    fixed = ", fixed: this policy does not support a dynamic batch size" if forced else ", fixed"
    print(f"batch size      {f'{policy.batch}{fixed}' if policy.batch else 'dynamic'}")
    print(f"max difference  {parity.worst:.3g} over {parity.steps} steps")
    return 0


def _of_data(env: EnvConfig, data: Affine) -> Actions:
    """Return the mapping of actions to the units of the data, within the environment's bounds."""
    from dreamlab.envs.vector import make_env
    from dreamlab.export.policy_export import Actions

    space: Any = make_env(env, 0, 0).action_space
    return Actions(space.low, space.high, data=data)
