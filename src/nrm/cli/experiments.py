"""Commands without a model: version, reproduce."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from nrm.cli.options import AsJson
from nrm.cli.output import Terminal, versions
from nrm.errors import NrmError
from nrm.extras import extra
from nrm.reproduce import EXPERIMENTS
from nrm.reproduce import reproduce as run_experiment
from nrm.reproduce.store import Unit

with extra("cli", "the command line"):
    import typer
    from rich.markdown import Markdown
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

NAMES = ", ".join([*EXPERIMENTS, "all"])


def version(json: AsJson = False) -> int:
    """Print the version."""
    terminal = Terminal(json)
    terminal.say(versions()["nrm"])
    terminal.finish("version")
    return 0


def reproduce(
    experiment: Annotated[str, typer.Argument(help=NAMES)],
    samples: Annotated[int | None, typer.Option(help="Number of samples (of training seeds: rnn).")] = None,
    third: Annotated[int | None, typer.Option(help="Number of samples for tables of third order.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with data and weights; else downloads.")] = None,
    out: Annotated[Path, typer.Option(help="Where results go; finished parts are kept there.")] = Path("out"),
    embedded: Annotated[bool, typer.Option(help="Small networks on the digits of scikit-learn; no data.")] = False,
    json: AsJson = False,
) -> int:
    """Run an experiment of the paper."""
    terminal = Terminal(json)
    results, code = [], 0
    for name in EXPERIMENTS if experiment == "all" else [experiment]:
        try:
            folder = run_experiment(
                name, data=data, out=out, samples=samples, third=third, embedded=embedded, track=_tracker(name)
            )
        except NrmError as error:
            if experiment != "all":
                raise
            terminal.note(f"{name}: {error}")  # the others go on
            code = 1
            continue
        files = sorted(p.name for p in folder.iterdir() if p.is_file())
        terminal.say(Markdown((folder / "table.md").read_text(encoding="utf-8")))
        terminal.say(f"in {folder}: {', '.join(files)}")
        results.append({"experiment": name, "folder": str(folder), "files": files})
    terminal.finish("reproduce", results=results)
    return code


def _tracker(name: str) -> Any:
    def track(units: Sequence[Unit]) -> Iterator[Unit]:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, transient=True) as progress:
            yield from progress.track(units, description=name)

    return track
