"""All commands together: what each is asked, and the module that answers it, imported when it is called."""

from typing import Any

from nrm.cli import asked
from nrm.cli.options import spread
from nrm.extras import extra

with extra("cli", "the command line"):
    import typer

COMMANDS: dict[type[Any], str] = {
    asked.Demo: "nrm.cli.pages",
    asked.Layers: "nrm.cli.ask",
    asked.Explain: "nrm.cli.explain",
    asked.Report: "nrm.cli.explain",
    asked.Heatmaps: "nrm.cli.maps",
    asked.Flows: "nrm.cli.ask",
    asked.Query: "nrm.cli.ask",
    asked.Check: "nrm.cli.ask",
    asked.Evaluate: "nrm.cli.judging",
    asked.Relmax: "nrm.cli.datasets",
    asked.Explore: "nrm.cli.pages",
    asked.Reproduce: "nrm.cli.experiments",
    asked.Version: "nrm.cli.version",
}


def make_command() -> Any:
    """The parser of ``nrm``."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, help="Normalized relevance measures.")
    for kind, home in COMMANDS.items():
        app.command(kind.__name__.lower())(spread(kind, home))
    return typer.main.get_command(app)
