"""The command `dreamlab`: finds the verb, runs it, and makes its end an exit code."""

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
from dreamlab.commands.printing import hang_up
from dreamlab.core.errors import LabError
from dreamlab.core.text import one_line, print

VERBS = {
    "Train": {
        "train": "Train, or go on with the run in run.dir.",
        "resume": "Go on with an interrupted run, or for longer.",
        "sweep": "Run every job of a sweep that is not over.",
        "tune": "Search for good options with Optuna.",
        "import": "Make a run of an original's checkpoint.",
        "demo": "Train a world model, show its dream.",
    },
    "Look": {
        "list": "List runs: filtered, sorted.",
        "show": "Tell all about a run, and how to go on with it.",
        "watch": "Show live runs: returns, speed, time left, alerts.",
        "logs": "Print events and metrics of a run as lines.",
        "diff": "Tell how two runs differ: options, code, machine.",
        "tag": "Give a run tags, or take them away.",
        "index": "Bring the index of runs up to date.",
    },
    "Compare": {
        "eval": "Measure a trained policy, write a video.",
        "compare": "Compare groups of seeds: statistics, figures.",
        "export": "Write a table of groups and metrics.",
        "report": "Write one page about runs that needs no other file.",
        "export-policy": "Write a policy for other programs or a model hub.",
    },
    "Data": {
        "data": "Look into data sets, convert and record them.",
    },
    "Trust": {
        "plan": "Tell parameters, memory, disk and hours before training.",
        "check": "Validate an environment.",
        "debug": "Train a few hundred frames with every check on.",
        "verify": "Run a run again: is everything the same?",
    },
    "Machine": {
        "doctor": "Tell what works on this machine.",
        "cleanup": "Remove checkpoints and buffers of old runs.",
        "completion": "Print what makes a shell complete commands.",
    },
}
SUMMARIES = {name: about for section in VERBS.values() for name, about in section.items()}
MODULES = {"import": "import_"}
"""Of a verb that no module can be called like; `-` is `_`."""
COMPLETE = "_DREAMLAB_COMPLETE"


class Verbs(click.Group):
    """The verbs, each in a module of its own that is imported when that verb is asked for."""

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
            near = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise LabError(f"there is no verb {one_line(name)!r}. {hint}All: dreamlab --help")
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
    epilog="`dreamlab train` without arguments lists the experiments. A verb's own help: dreamlab "
    "VERB --help",
)  # fmt: skip
@click.version_option(__version__, message="dreamlab %(version)s")
def app() -> None:
    """One lab for agents that learn a model of their world, and for their baselines."""
    spin_briefly()


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
    if COMPLETE in os.environ:
        return shell_complete(app, {}, "dreamlab", COMPLETE, os.environ[COMPLETE])
    if not args or args[0] == "help":
        args = [*args[1:], "--help"]
    try:
        with app.make_context("dreamlab", args) as context:
            return app.invoke(context) or 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        print(f"LabError: {one_line(_mistake(error))}", file=sys.stderr)
        return 2
    except LabError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped at once; the last checkpoint is whole", file=sys.stderr)
        return 130


def _mistake(error: click.ClickException) -> str:
    """Return what is wrong with a command line, as one sentence that names the verb."""
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


def spin_briefly() -> None:
    """Let threads that wait for each other soon fall asleep, unless the user says otherwise.

    Beside other work a thread that spins keeps the core from the very one it waits for: torch's
    default makes two threads up to three times slower than one. OpenMP reads this when torch is
    loaded; sleeping at once would cost more on an idle machine (benchmarks/threads.py).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


if __name__ == "__main__":
    sys.exit(main())
