"""The command that repeats experiments: reproduce."""

from collections.abc import Iterator, Sequence
from typing import Any

from nrm.cli.asked import ReproduceCommand
from nrm.cli.output import Terminal
from nrm.errors import NrmError
from nrm.extras import extra
from nrm.reproduce import EXPERIMENTS, Unit, reproduce as run_experiment

with extra("cli", "the command line"):
    from rich.markdown import Markdown
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def reproduce(asked: ReproduceCommand) -> int:
    """Run an experiment of the paper."""
    terminal = Terminal(asked.json)
    results, code = [], 0
    for name in EXPERIMENTS if asked.experiment == "all" else [asked.experiment]:
        try:
            folder = run_experiment(
                name,
                data=asked.data,
                out=asked.out,
                samples=asked.samples,
                third=asked.third,
                tasks=asked.tasks or (),
                embedded=asked.embedded,
                track=_tracker(name),
            )
        except NrmError as error:
            if asked.experiment != "all":
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
