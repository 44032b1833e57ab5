"""Draws docs/images/molecules.png: molecules of MUTAG with the relevance of their atoms and bonds.

Above, atoms of the input and bonds of the last graph layer of a network that was trained on other molecules, and the
best subgraph of five atoms; below, the bonds that are known to matter. Needs the real data (beside the repository, or
in ``$NRM_DATA``), torch_geometric, and RDKit for the places of atoms.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import matplotlib

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from real.molecules import ATOMS, deal, read_mutag, train  # noqa: E402

HOME = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data") / "graphs" / "MUTAG"
COUNT, SIZE = 3, 5
RULES = {"head": nrm.LRP0(), "*": nrm.ZPlus()}


def main() -> None:
    """Trains, explains, draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "molecules.png")
    options = parser.parse_args()
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    graphs = read_mutag(HOME)
    part = deal(graphs).tolist()
    model = train([g for g, p in zip(graphs, part, strict=True) if p != 0], seed=0).double()
    held = [g for g, p in zip(graphs, part, strict=True) if p == 0 and int(g.y) == 1 and bool(g.truth.any())]
    figure, axes = plt.subplots(2, COUNT, figsize=(4.2 * COUNT, 6.4), layout="constrained")
    for graph, (above, below) in zip(held, axes.T, strict=False):
        inputs = (graph.x.double(), graph.edge_index)
        R = nrm.measure(model, inputs, output=lambda o: o[:, 1] - o[:, 0], rules=RULES, bias="input")
        (best,) = R.subgraphs(SIZE, k=1).only
        labels = [ATOMS[i] for i in graph.x.argmax(1).tolist()]
        title = f"logits {float(R.value):.1f} apart, {100 * best.relevance:.0f} % inside"
        nodes, edges = R(R["input[0]"].positions), R(R["convs.2"].edges)
        nrm.plot.graph(graph, nodes, edges, labels=labels, marked=best, ax=above, value=R.value, title=title)
        nrm.plot.graph(graph, edges=graph.truth.float(), labels=labels, ax=below, colorbar=False, title="known bonds")
    figure.savefig(options.out, dpi=100)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
