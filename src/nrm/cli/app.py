"""The commands, each a thin door to a function of the library."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from nrm._version import __version__
from nrm.errors import NrmError
from nrm.extras import MissingExtraError, extra
from nrm.reproduce import EXPERIMENTS, reproduce
from nrm.reproduce.store import Unit


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code is 0 if all went well, 1 after a complaint, 2 for a command that makes no sense."""
    try:
        command = _command()
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        found = command(args=None if arguments is None else list(arguments), prog_name="nrm", standalone_mode=False)
        return int(found or 0)
    except NrmError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # what the parser has to say, in its own words
        show = getattr(error, "show", None)
        if show is None:
            if type(error).__name__ == "Abort":
                return 130
            raise
        show()
        return int(getattr(error, "exit_code", 2))


def _command() -> Any:
    with extra("cli", "the command line"):
        import typer

    app = typer.Typer(no_args_is_help=True, add_completion=False, help="Normalized relevance measures.")

    @app.callback()
    def root() -> None:
        pass

    @app.command()
    def version() -> None:
        """Print the version."""
        typer.echo(__version__)

    names = ", ".join([*EXPERIMENTS, "all"])

    @app.command("reproduce", help=f"Run an experiment of the paper: {names}.")
    def run(
        experiment: Annotated[str, typer.Argument(help=names)],
        samples: Annotated[int | None, typer.Option(help="Number of samples (of training seeds: rnn).")] = None,
        third: Annotated[int | None, typer.Option(help="Number of samples for tables of third order.")] = None,
        data: Annotated[Path | None, typer.Option(help="Folder with data and weights; else downloads.")] = None,
        out: Annotated[Path, typer.Option(help="Where results go; finished parts are kept there.")] = Path("out"),
        embedded: Annotated[bool, typer.Option(help="Small networks on the digits of scikit-learn; no data.")] = False,
    ) -> None:
        for name in EXPERIMENTS if experiment == "all" else [experiment]:
            folder = reproduce(
                name, data=data, out=out, samples=samples, third=third, embedded=embedded, track=_tracker(name)
            )
            _show(folder)

    return typer.main.get_command(app)


def _tracker(name: str) -> Any:
    with extra("cli", "the command line"):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    def track(units: Sequence[Unit]) -> Iterator[Unit]:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, transient=True) as progress:
            yield from progress.track(units, description=name)

    return track


def _show(folder: Path) -> None:
    with extra("cli", "the command line"):
        from rich.console import Console
        from rich.markdown import Markdown
    console = Console()
    console.print(Markdown((folder / "table.md").read_text(encoding="utf-8")))
    files = sorted(p.name for p in folder.iterdir() if p.is_file())
    console.print(f"in {folder}: {', '.join(files)}")
