"""All commands together."""

from typing import Any

from nrm.cli import ask, datasets, experiments, explain, pages
from nrm.cli.options import spread
from nrm.extras import extra

with extra("cli", "the command line"):
    import typer

COMMANDS = (
    pages.demo,
    ask.layers,
    explain.explain,
    ask.flows,
    ask.query,
    ask.check,
    datasets.relmax,
    pages.explore,
    experiments.reproduce,
    experiments.version,
)


def make_command() -> Any:
    """The parser of ``nrm``."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, help="Normalized relevance measures.")
    for command in COMMANDS:
        app.command()(spread(command))
    return typer.main.get_command(app)
