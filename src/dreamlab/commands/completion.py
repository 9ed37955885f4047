"""`dreamlab completion`: shell completion scripts."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from dreamlab.commands.arguments import argument, verb
from dreamlab.core.text import print

SHELLS = ("bash", "zsh", "fish")


@verb(
    "completion",
    'eval "$(dreamlab completion bash)"              # in ~/.bashrc; zsh: in ~/.zshrc',
    "dreamlab completion fish > ~/.config/fish/completions/dreamlab.fish",
)
@argument("shell", "bash (4.4 or newer), zsh or fish", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> int:
    """Print a script that completes commands, options, experiments and run directories."""
    root, found = ctx.find_root(), get_completion_class(shell)
    assert found is not None, shell
    print(found(root.command, {}, "dreamlab", "_DREAMLAB_COMPLETE").source())
    return 0
