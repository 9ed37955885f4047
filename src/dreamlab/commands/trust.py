"""The verbs by which a run is looked into, put away and handed on."""

from __future__ import annotations

import argparse
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dreamlab import build, train
from dreamlab.commands.arguments import Parser, natural, positive, positive_int
from dreamlab.commands.printing import json_text
from dreamlab.config import LabConfig, compose, load_config
from dreamlab.core.errors import ConfigError, DivergedError, LabError
from dreamlab.core.files import disk_errors
from dreamlab.core.text import print
from dreamlab.engine.inspector import Inspector
from dreamlab.engine.memory import MemoryProfile, describe
from dreamlab.engine.observer import StageTimes, StopWhen
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.profiler import Profiler
from dreamlab.engine.terminal import Terminal
from dreamlab.envs.vector import Envs, make_env
from dreamlab.export import hub
from dreamlab.interop import strangers
from dreamlab.runs import cleanup as cleaning
from dreamlab.runs.find import ROOT
from dreamlab.runs.run import Run

MIB = 2**20
RECENT = 30
"""How many of the newest runs are kept."""


# -- debug ----------------------------------------------------------------------------------------


def debug(args: list[str]) -> int:
    """Train for a few hundred frames with every check on; 1 if an error was found."""
    parser = Parser(prog="dreamlab debug", allow_abbrev=False)
    parser.add_argument("--frames", type=positive_int, default=500)
    options, overrides = parser.parse_known_args(args)
    config = _debug_config(overrides)
    build.check(config)
    with disk_errors(every=True), tempfile.TemporaryDirectory() as scratch:
        folder = Path(config.run.dir or f"{scratch}/checked")
        inspector = Inspector(_open(config, folder), config.env.normalize_obs is not None)
        inspector.attach()
        inspector.loop.observers.add(_stop_at(options.frames))
        error: LabError | None = None
        try:
            inspector.loop.run()
        except DivergedError as diverged:
            error = diverged
        _report_inspection(inspector, error)
        if error is None:  # again without the checks, which would be most of the profile
            plain = replace(config, watch=replace(config.watch, check_every_update=False))
            _measure(_open(plain, Path(scratch) / "measured"), options.frames)
            _profile(_open(plain, Path(scratch) / "profiled"), options.frames)
    found = [f.level for f in inspector.findings()]
    return 1 if error is not None or "error" in found else 0


def _stop_at(frames: int) -> StopWhen:
    return StopWhen(lambda loop: loop.counters.env_frames >= frames)


def _open(config: LabConfig, folder: Path) -> Orchestrator:
    """Return the loop of a new run folder."""
    with train.open_run(replace(config, run=replace(config.run, dir=str(folder)))) as opened:
        if opened.found:
            raise LabError(f"{folder} holds a run already: choose another run.dir")
        loop = build.build(opened.config, opened.run, Terminal("off", config.name))
        opened.keep()
    return loop


def _debug_config(overrides: list[str]) -> LabConfig:
    preset = [] if any("preset=" in o for o in overrides) else ["+preset=debug"]
    config = load_config(compose([*overrides, *preset]))
    return replace(
        config,
        compile=False,
        log=replace(config.log, terminal="off"),
        eval=replace(config.eval, video=False),
        watch=replace(config.watch, check_every_update=True, profile_updates=0, on_nan="stop"),
    )


def _report_inspection(inspector: Inspector, error: LabError | None) -> None:
    counters, findings = inspector.loop.counters, inspector.findings()
    print(f"{counters.env_frames} env frames, {counters.updates} updates")
    print("\nfindings" if findings or error else "\nnothing wrong was found")
    for finding in findings:
        print(f"  {finding.level:8s} {finding.text}")
    if error is not None:
        print(f"  error    {error}")
    print("\ninputs                       lowest     highest")
    for name, seen in [*inspector.obs.items(), ("action", inspector.action)]:
        print(f"  {name:24s} {seen.low:10.4g}  {seen.high:10.4g}")
    print("\ngradients, after clipping     first      median     largest")
    for name, first, median, largest in inspector.gradient_rows():
        print(f"  {name:24s} {first:10.3g}  {median:10.3g}  {largest:10.3g}")
    print("\nlargest activations")
    for name, seen in sorted(inspector.outputs.items(), key=lambda x: -x[1].largest)[:5]:
        print(f"  {name:40s} {seen.largest:10.3g}")


def _measure(loop: Orchestrator, frames: int) -> None:
    """Train again, and print where memory and time went."""
    times, memory = StageTimes(), MemoryProfile()
    for observer in (times, memory, _stop_at(frames)):
        loop.observers.add(observer)
    loop.run()
    print("\n" + "\n".join(describe(memory)))
    print("\ntime, without the checks")
    total = sum(times.seconds.values())
    for name, spent in sorted(times.seconds.items(), key=lambda x: -x[1]):
        print(f"  {name:24s} {spent:8.2f} s  {spent / total:6.1%}")


def _profile(loop: Orchestrator, frames: int) -> None:
    """Train a third time, as far as the profiler needs, which slows and takes memory itself."""
    profiler = Profiler(3, loop.run_log.folder / "trace.json", lambda _: None)
    loop.observers.add(profiler)
    loop.observers.add(_stop_at(frames))
    loop.observers.add(StopWhen(lambda _: profiler.done))
    loop.run()
    for name, share in profiler.operations(5):
        print(f"    of updates: {name[:40]:40s} {share:6.1%}")


# -- cleanup --------------------------------------------------------------------------------------


def cleanup(args: list[str]) -> int:
    """Say what old runs would give back; with --yes remove it."""
    parser = Parser(prog="dreamlab cleanup")
    parser.add_argument("root", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--keep-best", type=natural, default=10, help="of each experiment (10)")
    parser.add_argument(
        "--keep-recent", type=natural, help=f"of all runs ({RECENT}, or 0 with --older-than)"
    )
    parser.add_argument(
        "--older-than", type=_age_s, default=0.0, metavar="AGE",
        help="only runs that were last heard of before that: 30d, 12h, 2w",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do it, instead of saying what it does")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    options = parser.parse_args(args)
    recent = options.keep_recent
    if recent is None:  # whoever names an age means all runs of that age
        recent = 0 if options.older_than else RECENT
    with disk_errors(every=True):
        runs = cleaning.survey(options.root, options.keep_best, recent, options.older_than)
    if not runs:
        raise LabError(f"{options.root}: there is no run")
    due = [run for run in runs if run.due]
    said = "cleaned" if options.yes else "would clean"
    for run in due:
        if options.yes:
            cleaning.clean(run)
        if not options.json:
            print(f"{said:12s} {_mib(run.total)}  {run.folder}")
    if options.json:
        print(json_text([_plain(run, cleaned=run.due and options.yes) for run in runs]))
        return 0
    _sum_up(runs, due)
    if due and not options.yes:
        print("nothing was removed: add --yes to do it")
    return 0


def _age_s(text: str) -> float:
    """Read an age: 30d, 12h, 2w; argparse makes the error one line."""
    match = re.fullmatch(r"(\d{1,5})([hdw])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write a number and h, d or w, as in 30d")
    return int(match[1]) * {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}[match[2]]


def _plain(run: cleaning.Candidate, cleaned: bool) -> dict[str, Any]:
    facts = {"folder": str(run.folder), "kept": run.kept, "bytes": run.sizes}
    return {**facts, "due": run.due, "cleaned": cleaned}


def _sum_up(runs: list[cleaning.Candidate], due: list[cleaning.Candidate]) -> None:
    reasons = [run.kept for run in runs if run.kept]
    counted = ", ".join(f"{reasons.count(r)} {r}" for r in sorted(set(reasons)))
    print(f"{len(due)} of {len(runs)} runs to clean" + (f"; kept: {counted}" if counted else ""))
    for kind, size in cleaning.totals(due).items():
        print(f"  {kind:12s} {_mib(size)}")
    print(f"  {'together':12s} {_mib(sum(run.total for run in due))}")


def _mib(size: int) -> str:
    return f"{size / MIB:10.1f} MiB"


# -- export-policy --------------------------------------------------------------------------------


def export_policy(args: list[str]) -> int:
    """Write a run's policy for other programs, compared with the original before it counts."""
    parser = Parser(prog="dreamlab export-policy")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", choices=["onnx", "torchscript"], default="onnx")
    parser.add_argument("--checkpoint", default="latest", help="latest, best or a name")
    parser.add_argument("--out", type=Path, help="the file; FOLDER/export/policy.* otherwise")
    parser.add_argument(
        "--batch", type=positive_int, help="fix the number of rows; any number otherwise"
    )
    parser.add_argument("--tolerance", type=positive, default=1e-4)
    parser.add_argument("--hub", type=Path, help="write a folder for a model hub instead")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload that folder to Hugging Face")
    parser.add_argument("--private", action="store_true", help="only you shall see what is pushed")
    parser.add_argument("--trust-code", action="store_true", help="run what a hub's policy names")
    options = parser.parse_args(args)
    options.folder = hub.resolve(options.folder)
    if not (options.folder / "config.yaml").exists():
        raise ConfigError(f"{options.folder} is not a run folder: it has no config.yaml")
    if options.private and not options.push:
        raise ConfigError("export-policy: --private is about --push OWNER/NAME")
    to_hub = options.hub or options.push
    if hub.is_hub(options.folder) and not (options.out or to_hub):
        raise ConfigError("export-policy: nothing is written into a hub's folder: add --out FILE")
    trained = train.load_policy(options.folder, options.checkpoint, options.trust_code)
    with disk_errors(every=True), strangers.guarded(options.folder, options.trust_code):
        return _export_to_hub(trained, options) if to_hub else _export(trained, options)


def _export_to_hub(trained: train.Trained, options: Any) -> int:
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
            print(f"pushed to  {url}\nmeasure it with  dreamlab eval {source}")
    return 0


def _export(trained: train.Trained, options: Any) -> int:
    from dreamlab.export import policy_export as exporting
    from dreamlab.export import policy_files as files

    torch.set_num_threads(1)  # a row at a time is too little work to share
    env = trained.config.env
    wrapper = exporting.action_wrapper(make_env(env, 0, 0))
    normalize = exporting.Normalize(env.normalize_obs, trained.statistics)
    workflow = trained.workflow.cpu().eval()
    actions = exporting.actions_of(wrapper)
    policy = exporting.Exported(workflow, normalize, actions, options.batch)
    path: Path = options.out or options.folder / "export" / f"policy{files.SUFFIX[options.format]}"

    def check(run_file: files.Runner) -> files.Parity:
        rows = policy.batch or 1
        envs = Envs(replace(env, num_envs=rows, vector="sync", normalize_obs=None), 0)
        steps = files.record(policy, workflow, envs, 64)
        envs.close()
        taken = wrapper.action if wrapper is not None else lambda a: a
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
    fixed = " only: this policy cannot be written for any number of them" if forced else " only"
    print(f"rows            {f'{policy.batch}{fixed}' if policy.batch else 'any number'}")
    print(f"max difference  {parity.worst:.3g} over {parity.steps} steps")
    return 0
