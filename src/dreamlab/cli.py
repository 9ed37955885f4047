"""The `dreamlab` command line: dispatch a command and return its exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, shell_complete

from dreamlab import __version__
from dreamlab.accel.before_torch import prepare
from dreamlab.commands.foreign_lines import LINES, retyped, translated, verb_like
from dreamlab.commands.printing import hang_up
from dreamlab.core.errors import LabError, UnknownOptionError
from dreamlab.core.foreign_words import BY_NAME
from dreamlab.core.text import one_line, print

VERBS = {
    "Train": {
        "train": "Train, or resume the run in run.dir.",
        "resume": "Resume an interrupted run, or extend a finished one.",
        "sweep": "Run all unfinished jobs of a sweep.",
        "tune": "Tune hyperparameters with Optuna.",
        "import": "Import a checkpoint of DreamerV3, TD-MPC2 or LeRobot.",
        "demo": "Train a world model and show its dream.",
    },
    "Look": {
        "list": "List runs, with filters and sorting.",
        "show": "Show a run in full, and how to resume it.",
        "watch": "Show live runs: returns, speed, time left, alerts.",
        "logs": "Print a run's events and metrics.",
        "diff": "Compare two runs: options, code, machine.",
        "tag": "Add or remove tags of a run.",
        "index": "Update the run index.",
    },
    "Compare": {
        "eval": "Evaluate a trained policy, record a video.",
        "compare": "Compare groups of runs: statistics, figures.",
        "export": "Export a table of results.",
        "report": "Write a self-contained HTML report about runs.",
        "export-policy": "Export a policy to ONNX, TorchScript or a model hub.",
    },
    "Data": {
        "data": "Inspect, convert and record datasets.",
    },
    "Trust": {
        "plan": "Estimate parameters, memory, disk and time before training.",
        "check": "Validate an environment.",
        "debug": "Train a few hundred frames with every check on.",
        "verify": "Rerun part of a run and check that it reproduces.",
    },
    "Machine": {
        "doctor": "Check the installation and hardware.",
        "cleanup": "Delete checkpoints and buffers of old runs.",
        "completion": "Print a shell completion script.",
    },
}
SUMMARIES = {name: about for section in VERBS.values() for name, about in section.items()}
MODULES = {"import": "import_"}
"""Modules of commands whose names are Python keywords; `-` becomes `_`."""
COMPLETE = "_DREAMLAB_COMPLETE"


class Verbs(click.Group):
    """The commands, each in its own lazily imported module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*SUMMARIES, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUMMARIES:
            return super().get_command(ctx, cmd_name)
        module = MODULES.get(cmd_name, cmd_name.replace("-", "_"))
        return importlib.import_module(f"dreamlab.commands.{module}").command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            if answer := verb_like(name, args[1:]):
                raise LabError(answer)
            near = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise LabError(f"there is no command {one_line(name)!r}. {hint}All: dreamlab --help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in VERBS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()), col_max=14)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        verbs = SUMMARIES.items()
        found = [CompletionItem(n, help=s) for n, s in verbs if n.startswith(incomplete)]
        return found or click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=Verbs,
    context_settings={
        "help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100,
    },
    epilog="`dreamlab train` without arguments lists the experiments. Help for a command: "
        "dreamlab COMMAND --help",
)  # fmt: skip
@click.version_option(__version__, message="dreamlab %(version)s")
def app() -> None:
    """Train, evaluate and compare world-model agents and their baselines."""
    prepare()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a user error prints one message and returns 2, never a traceback."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # a `_target_` or env in the working directory
    try:
        code = _run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has closed the pipe
        return 0
    finally:
        hang_up()


def _run(args: list[str]) -> int:
    if COMPLETE in os.environ:
        return shell_complete(app, {}, "dreamlab", COMPLETE, os.environ[COMPLETE])
    if not args or args[0] == "help":
        args = [*args[1:], "--help"]
    try:
        with app.make_context("dreamlab", list(args)) as context:
            return app.invoke(context) or 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.NoSuchOption as error:
        print(f"LabError: {_unknown_option(error, args)}", file=sys.stderr)
        return 2
    except click.ClickException as error:
        print(f"LabError: {one_line(_mistake(error))}", file=sys.stderr)
        return 2
    except UnknownOptionError as error:
        print(f"ConfigError: {retyped(args, error) or error}", file=sys.stderr)
        return 2
    except LabError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the last checkpoint is complete", file=sys.stderr)
        return 130


def _unknown_option(error: click.NoSuchOption, args: list[str]) -> str:
    """Return what is wrong with an option; a line of another program is answered as a whole."""
    own = one_line(_mistake(error))
    known = error.option_name.lstrip("-").replace("-", "_") in (*BY_NAME, *LINES)
    if error.possibilities and not known:
        return own
    verb, words = (args[0], args[1:]) if args[0] in SUMMARIES else ("train", args)
    try:
        answer = translated(verb, words)
    except LabError as fault:
        return f"{own}\n  {fault}"
    return f"{verb}: {answer}" if answer else own


def _mistake(error: click.ClickException) -> str:
    """Return a one-sentence usage error that names the command."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    verb = ctx.command.name if ctx is not None and ctx.parent is not None else "dreamlab"
    return f"{verb}: {_fault(error, ctx)}"


def _fault(error: click.ClickException, ctx: click.Context | None) -> str:
    if isinstance(error, click.NoSuchOption):
        near = f" Did you mean {error.possibilities[0]!r}?" if error.possibilities else ""
        return f"there is no option {error.option_name!r}.{near}"
    if isinstance(error, click.BadParameter) and ctx is not None and error.param is not None:
        of = error.param.get_error_hint(ctx).replace("'", "").split(" / ")[-1]
        if isinstance(error, click.MissingParameter):
            usage = " ".join(ctx.get_usage().split()).removeprefix("Usage: ")
            return f"argument {of} is missing: {usage}"
        return f"argument {of}: {error.message}"
    return error.format_message()


if __name__ == "__main__":
    sys.exit(main())
