"""The command `dreamlab` and its verbs."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamlab import __version__
from dreamlab.commands.printing import hang_up
from dreamlab.core.errors import LabError
from dreamlab.core.text import print

USAGE = """dreamlab <verb> [options]

  train     +experiment=NAME [key=value ...]     train, or go on with the run in run.dir
  resume    FOLDER [training.total_frames=N]     go on with an interrupted run
  eval      FOLDER|hub:OWNER/NAME [--episodes N] measure a trained policy, write a video
  import    dreamerv3 PATH env=ID [key=value ...] make a run of an original's checkpoint
  sweep     FILE [key=value ...]                 run every job of a sweep that is not over
  tune      FILE [key=value ...]                 search for good options with Optuna
  plan      +experiment=NAME [key=value ...]     parameters, memory, disk and hours, before training
  check     env=ID [key=value ...]               validate an environment
  compare   GROUP ... [--metrics A,B] [--out DIR] statistics over seeds, intervals and figures
  export    GROUP ... --format latex|csv|...     a table of groups and metrics
  report    GROUP ... --out page.html            one page about runs that needs no other file
  list      [ROOT ...] [--filter 'return>400']   runs: filtered, --sort KEY, --limit N
  show      RUN                                  all about a run, and how to go on with it
  tag       RUN TAG ... [--remove TAG ...]       give and take tags
  logs      RUN [--follow] [--last N]            events and metrics as lines
  diff      A B                                  how two runs differ: options, code, machine
  index     [ROOT] [--rebuild]                   bring the index of runs up to date
  verify    RUN [--frames N] [--from CHECKPOINT]  run it again: is everything the same?
  debug     +experiment=NAME [key=value ...]     a few hundred frames with every check on
  cleanup   [ROOT] [--older-than 30d] [--yes]    remove checkpoints and buffers of old runs
  export-policy RUN --format onnx|torchscript    a policy for other programs; --push OWNER/NAME
  watch     [ROOT ...] [--all] [--once]          live runs: returns, speed, time left, alerts
  doctor                                         what works on this machine
  demo                                           train a world model, show its dream

train, plan: --cfg job prints the whole configuration and stops.
`dreamlab train` without arguments lists the experiments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; a user's mistake is one message and exit code 2, never a traceback."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # a `_target_` or env in the user's own folder
    try:
        code = _run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has left: nobody is there to be told
        return 0
    finally:
        hang_up()


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if args[0] == "--version":
        print(f"dreamlab {__version__}")
        return 0
    spin_briefly()
    try:
        return _verb(args[0])(args[1:])
    except LabError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped at once; the last checkpoint is whole", file=sys.stderr)
        return 130


def spin_briefly() -> None:
    """Let threads that wait for each other soon fall asleep, unless the user says otherwise.

    Beside other work a thread that spins keeps the core from the very one it waits for: torch's
    default makes two threads up to three times slower than one. OpenMP reads this when torch is
    loaded; sleeping at once would cost more on an idle machine (benchmarks/threads.py).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def _verb(name: str) -> Callable[[list[str]], int]:
    from dreamlab.core.errors import unknown

    if name in VERBS:
        return VERBS[name]
    if name not in COMMANDS:
        raise LabError(unknown("verb", name, [*VERBS, *COMMANDS], "dreamlab"))
    module = importlib.import_module(f"dreamlab.commands.{COMMANDS[name]}")
    return getattr(module, name.replace("-", "_"))


def train(args: list[str]) -> int:
    """Train; `seed=1,2,3` trains each seed in turn."""
    from dreamlab import train
    from dreamlab.config import choices, compose, load_config, to_yaml

    if not args:
        print("experiments:", ", ".join(choices("experiment")))
        return 0
    args, cfg = _take_cfg(args)
    for overrides in _seeds(args):
        config = load_config(compose(overrides))
        if cfg:
            print(to_yaml(config), end="")
            continue
        if train.train(config)[1] == "interrupted":
            return 130
    return 0


def _take_cfg(args: list[str]) -> tuple[list[str], bool]:
    """Split Hydra's `--cfg job` off the arguments."""
    if "--cfg" not in args:
        return args, False
    at = args.index("--cfg")
    if args[at + 1 : at + 2] != ["job"]:
        raise LabError("--cfg: only `--cfg job` is known; it prints the configuration and stops")
    return args[:at] + args[at + 2 :], True


def _seeds(args: list[str]) -> list[list[str]]:
    """Return one list of overrides per seed; each has its own folder."""
    at = next((i for i, a in enumerate(args) if a.startswith("seed=") and "," in a), None)
    if at is None:
        return [args]
    folder = next((a.split("=", 1)[1] for a in args if a.startswith("run.dir=")), None)
    rest = [a for i, a in enumerate(args) if i != at and not a.startswith("run.dir=")]
    out: list[list[str]] = []
    for seed in args[at].split("=", 1)[1].split(","):
        if not re.fullmatch(r"-?[0-9_]+", seed.strip()):
            raise LabError(f"seed: expected int, got {seed!r}")
        extra = [f"run.dir={folder}/seed_{seed}"] if folder else []
        out.append([*rest, f"seed={seed}", *extra])
    return out


def resume(args: list[str]) -> int:
    """Go on with a run from its own configuration."""
    from dreamlab import train
    from dreamlab.core.config import convert
    from dreamlab.core.errors import ConfigError
    from dreamlab.core.limits import PositiveInt

    trust, args = "--trust-code" in args, [a for a in args if a != "--trust-code"]
    if not args:
        raise LabError("dreamlab resume FOLDER")
    folder, overrides, frames = Path(args[0]), args[1:], None
    for override in overrides:
        key, _, value = override.partition("=")
        if key != "training.total_frames" or not value.replace("_", "").isdecimal():
            raise ConfigError(
                f"resume: {override!r}: only training.total_frames=N may change; "
                "for other options start a new run"
            )
        frames = convert(int(value), PositiveInt, key)
    return 130 if train.resume(folder, frames, trust_code=trust)[1] == "interrupted" else 0


def evaluate(args: list[str]) -> int:
    """Measure a trained policy."""
    from dreamlab import build, train
    from dreamlab.commands.arguments import Parser, positive_int, seed
    from dreamlab.export import hub
    from dreamlab.interop import strangers

    parser = Parser(prog="dreamlab eval")
    parser.add_argument(
        "folder", type=Path, help="a run's folder, a hub's, or hub:OWNER/NAME[@REVISION]"
    )
    parser.add_argument("--episodes", type=positive_int, default=10)
    parser.add_argument(
        "--checkpoint", default="latest", help="latest, best, or a name in checkpoints/"
    )
    parser.add_argument("--seed", type=seed, default=20_000)
    parser.add_argument("--video", action="store_true")
    parser.add_argument("--out", type=Path, help="where results go; the run's folder otherwise")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    parser.add_argument("--trust-code", action="store_true", help="run what a hub's policy names")
    options = parser.parse_args(args)
    folder = hub.resolve(options.folder)
    out: Path | None = options.out or (None if hub.is_hub(folder) else folder)
    if options.video and out is None:
        raise LabError("eval: nothing is written into a hub's folder: add --out FOLDER")
    trained = train.load_policy(folder, options.checkpoint, options.trust_code)
    changed = replace(trained.config.eval, episodes=options.episodes, seed=options.seed)
    evaluator = build.build_evaluator(replace(trained.config, eval=changed))
    with strangers.guarded(folder, options.trust_code):
        result = evaluator.run(trained.workflow, trained.statistics, film=options.video)
    metrics = {"env_frames": trained.env_frames, **result.metrics()}
    if wrong := [k for k, v in metrics.items() if not math.isfinite(v)]:
        raise LabError(
            f"eval: {wrong[0]} is {metrics[wrong[0]]}: the policy acts, but its environment or "
            "its rewards are not finite (`dreamlab check` tries the environment)"
        )
    measured = {**metrics, "returns": result.returns}
    faults = _keep_eval(result, measured, out, f"eval_seed{options.seed}.mp4")
    _print_eval(metrics, {**measured, "video": result.video and str(result.video)}, options.json)
    if result.cut:
        print(result.cut_text(changed.max_steps), file=sys.stderr)
    for what, fault in faults.items():
        print(f"eval: the {what} could not be written: {fault}", file=sys.stderr)
    asked = "video" in faults or options.out is not None
    return 2 if faults and asked else 0


def _keep_eval(
    result: Any, measured: dict[str, Any], out: Path | None, film: str
) -> dict[str, OSError]:
    """Write what was measured, and the video; return what the disk refused, and why."""
    from dreamlab.core.files import write_json
    from dreamlab.engine.video import write_video

    faults: dict[str, OSError] = {}
    if out is None:
        return faults
    try:
        write_json(out / "report" / "eval.json", measured)
    except OSError as error:
        faults["result"] = error
    if result.frames:
        try:
            result.video = write_video(out / "videos" / film, result.frames)
        except OSError as error:
            faults["video"] = error
    return faults


def _print_eval(metrics: dict[str, float], measured: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(measured, indent=2))
        return
    for name, value in metrics.items():
        print(f"{name:18s} {value:.6g}")
    if measured["video"]:
        print(f"video              {measured['video']}")


def import_(args: list[str]) -> int:
    """Make a run folder from a checkpoint of another program; eval and resume work on it."""
    from dreamlab import build, train
    from dreamlab.core.errors import unknown
    from dreamlab.core.files import disk_errors
    from dreamlab.interop import import_run

    if len(args) < 2:
        raise LabError("dreamlab import dreamerv3 PATH env=ID [run.dir=FOLDER] [key=value ...]")
    if args[0] != "dreamerv3":
        raise LabError(unknown("program to import from", args[0], ["dreamerv3"], "import"))
    weights = import_run.read_weights(Path(args[1]))
    config = import_run.config_for(weights, args[2:])
    if config.run.dir and (Path(config.run.dir) / "config.yaml").exists():
        raise LabError(f"{config.run.dir} holds a run already: import into another run.dir")
    import_run.check_fit(weights, config)
    with disk_errors("Give the run another place with run.dir"), train.open_run(config) as opened:
        run = opened.run
        if opened.found:  # another process was faster
            raise LabError(f"{run.folder} holds a run already: import into another run.dir")
        loop = build.build(opened.config, run)
        moments = import_run.fill(loop.workflow, weights)
        loop.save()
        opened.keep()
        run.event("imported", source=args[1], optimizer=moments)
        run.update(status="imported")
    print(f"imported {'with' if moments else 'without'} the optimizer's moments: {run.folder}")
    return 0


def plan(args: list[str]) -> int:
    """Print what a run will cost, from a few seconds of it in a scratch folder."""
    from dreamlab import build
    from dreamlab.config import compose, load_config, to_yaml
    from dreamlab.core.words import duration
    from dreamlab.engine.plan import make_plan
    from dreamlab.engine.terminal import Terminal
    from dreamlab.engine.watch import disk_free, memory_available
    from dreamlab.runs.run import Run

    args, cfg = _take_cfg(args)
    config = load_config(compose(args))
    if cfg:
        print(to_yaml(config), end="")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(Path(scratch) / "run")
        run.folder.mkdir()
        loop = build.build(config, run, Terminal("off", config.name))
        envs = loop.parts.collector.envs
        sizes = {
            k: build.buffer_bytes(p, loop.workflow, config.env.num_envs)
            for k, p in config.buffers.items()
        }
        result = make_plan(loop, sizes)
        stored = {
            k: getattr(getattr(b, "config", None), "storage", "ram")
            for k, b in loop.parts.buffers.items()
        }
    gib = 2**30
    rows = [("parameters", f"{result.parameters:,}")]
    rows += [
        (f"buffer {k}", f"{v / gib:.3f} GiB when full, in {stored[k]}") for k, v in sizes.items()
    ]
    rows += [
        ("memory free", f"{memory_available() / gib:.1f} GiB"),
        (
            "disk",
            f"{result.disk_bytes / gib:.3f} GiB of {disk_free(Path.cwd()) / gib:.1f} GiB free",
        ),
        (
            "one tick",
            f"{1e3 * result.tick_s:.2f} ms ({envs.num_envs / result.tick_s:,.0f} decisions/s)",
        ),
        ("one update", f"{1e3 * result.update_s:.2f} ms"),
        ("env frames", f"{result.env_frames:,}"),
        ("updates", f"{result.updates:,.0f}"),
        ("expected time", duration(3600 * result.hours)),
    ]
    for name, value in rows:
        print(f"{name:16s} {value}")
    return 0


def check_env(args: list[str]) -> int:
    """Validate an environment; exit code 1 if it breaks the contract."""
    from dreamlab.build import env_config
    from dreamlab.config import compose
    from dreamlab.envs.check import check

    return _report(check(env_config(compose(args))))


def doctor(args: list[str]) -> int:
    """Report what works on this machine."""
    from dreamlab.envs.doctor import doctor as examine

    _report(examine())
    return 0


def _report(findings: Sequence[Any]) -> int:
    for finding in findings:
        print(f"{finding.level:8s} {finding.text}")
    return 1 if any(f.level == "error" for f in findings) else 0


def demo(args: list[str]) -> int:
    """Train the built-in example and show what came of it."""
    from dreamlab.demo import run_demo

    return run_demo(args)


VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "import": import_,
    "plan": plan,
    "check": check_env,
    "doctor": doctor,
    "demo": demo,
}

# verb: the module of `dreamlab.commands` that has a function of that name (`-` as `_`)
COMMANDS = {
    **dict.fromkeys(("list", "show", "tag", "logs", "diff", "index"), "catalogue"),
    **dict.fromkeys(("compare", "export", "report"), "results"),
    **dict.fromkeys(("sweep", "tune"), "many"),
    **dict.fromkeys(("debug", "cleanup", "export-policy"), "trust"),
    "verify": "verify",
    "watch": "dashboard",
}

if __name__ == "__main__":
    sys.exit(main())
