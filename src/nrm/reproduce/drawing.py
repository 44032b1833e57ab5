"""The figures of the experiments, put together from the plots of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nrm.extras import extra
from nrm.plot import sc_curves, scatter
from nrm.reproduce.store import Tensors
from nrm.reproduce.tables import methods_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def panels(rows: int, columns: int, width: float = 3.4, height: float = 3.0) -> tuple[Figure, Any]:
    """A figure with so many panels."""
    with extra("viz", "nrm reproduce"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def curves_figure(tables: Mapping[str, Tensors]) -> Figure:
    """SC_k of every method, one panel per table."""
    figure, axes = panels(1, len(tables), 4.4, 3.4)
    for ax, (title, table) in zip(axes[0], tables.items(), strict=True):
        sc_curves(table["k"], {name: table[f"{name}/sc"] for name, _ in methods_of(table)}, ax=ax, title=title)
    return figure


def correlation_figure(tables: Mapping[str, tuple[Tensor, Mapping[str, Tensor]]]) -> Figure:
    """Contributions over the scores of every method; one row of panels per table."""
    columns = max(len(own) for _, own in tables.values())
    figure, axes = panels(len(tables), columns)
    for row, (title, (contributions, own)) in zip(axes, tables.items(), strict=True):
        for ax, (name, table) in zip(row, own.items(), strict=False):
            scatter(contributions, table, ax=ax, title=f"{title}: {name}", labels=(name, "joint contribution"))
    return figure
