"""Running an experiment: its units one by one, then tables and figures."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nrm._version import __version__
from nrm.errors import NrmWarning, QuestionError
from nrm.files import claim, write_text
from nrm.plot import save_and_close
from nrm.reproduce.additive import ADDITIVE
from nrm.reproduce.bonds import BONDS
from nrm.reproduce.channels import CHANNELS
from nrm.reproduce.circuits import CIRCUITS
from nrm.reproduce.clusters import CLUSTERS
from nrm.reproduce.contrast import CONTRAST
from nrm.reproduce.experiment import Experiment, Setting, Tracking
from nrm.reproduce.gnn import GNN
from nrm.reproduce.image_circuits import IMAGE_CIRCUITS
from nrm.reproduce.mlp import MLP
from nrm.reproduce.rnn import RNN
from nrm.reproduce.rules import RULES
from nrm.reproduce.store import ExperimentFolder, Unit
from nrm.reproduce.tables import as_json, as_markdown

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e for e in (MLP, CHANNELS, CLUSTERS, ADDITIVE, RNN, GNN, BONDS, RULES, CONTRAST, CIRCUITS, IMAGE_CIRCUITS)
}


def reproduce(
    name: str, *, data: str | Path | None = None, out: str | Path = "out", samples: int | None = None,
    third: int | None = None, tasks: Sequence[str] = (), embedded: bool = False, track: Tracking | None = None,
) -> Path:  # fmt: skip
    """Runs an experiment and returns its folder, with ``results.json``, ``table.md`` and figures.

    Finished parts are kept there: a run that was interrupted goes on where it stopped, and asking for more ``samples``
    adds the missing ones; ``third`` limits those of third order, and ``tasks`` chooses some of an experiment that has
    several. ``data`` is a folder with data and weights;
    ``embedded`` needs none and takes seconds.
    """
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        raise QuestionError(
            f"unknown experiment {name!r}", expected=", ".join(EXPERIMENTS), hint=near[0] if near else None
        )
    for count in (samples, third):
        if count is not None and count < 1:
            raise QuestionError("not a number of samples", got=str(count), expected="at least 1")
    home = None if data is None else Path(data)
    if home is not None and not home.is_dir():
        raise QuestionError("there is no such data folder", got=str(home))
    experiment = EXPERIMENTS[name]
    folder = Path(out) / name
    with claim(folder):
        store = ExperimentFolder(folder, {"experiment": name, "embedded": embedded, "version": __version__})
        units, finish = experiment.plan(Setting(home, samples, embedded, store, third, tuple(tasks)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NrmWarning)  # remarks about single samples; what is refused is counted
            store.finish(units, track or _bar(name))
            outcome = finish()
        facts = {"corresponds to": experiment.paper, "date": date.today().isoformat(), **outcome.facts}
        for title, figure in outcome.figures.items():
            save_and_close(figure, folder / f"{title}.png", tight=False)
        write_text(folder / "table.md", as_markdown(experiment.title, outcome.rows, facts))
        write_text(folder / "results.json", as_json(name, outcome.rows, facts))
    return folder


def _bar(name: str) -> Any:
    def track(units: Sequence[Unit]) -> Iterator[Unit]:
        yield from tqdm(units, desc=name, disable=not units)

    return track
