"""All commands together: what each is asked, and the module that answers it, imported when it is called."""

from typing import Any

from nrm.cli import asked
from nrm.cli.options import spread
from nrm.extras import extra

with extra("cli", "the command line"):
    import typer

COMMANDS: dict[type[Any], str] = {
    asked.DemoCommand: "nrm.cli.pages",
    asked.LayersCommand: "nrm.cli.ask",
    asked.ExplainCommand: "nrm.cli.explain",
    asked.ReportCommand: "nrm.cli.explain",
    asked.HeatmapsCommand: "nrm.cli.maps",
    asked.FlowsCommand: "nrm.cli.ask",
    asked.QueryCommand: "nrm.cli.ask",
    asked.CheckCommand: "nrm.cli.ask",
    asked.EvaluateCommand: "nrm.cli.judging",
    asked.GenerateCommand: "nrm.cli.writing",
    asked.CircuitCommand: "nrm.cli.circuits",
    asked.RelmaxCommand: "nrm.cli.datasets",
    asked.ExploreCommand: "nrm.cli.pages",
    asked.ReproduceCommand: "nrm.cli.experiments",
    asked.VersionCommand: "nrm.cli.version",
}


def make_command() -> Any:
    """The parser of ``nrm``."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, help="Normalized relevance measures.")
    for kind, home in COMMANDS.items():
        app.command(kind.__name__.removesuffix("Command").lower())(spread(kind, home))
    return typer.main.get_command(app)
