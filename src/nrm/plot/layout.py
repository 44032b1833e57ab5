"""Where the nodes of a graph lie in a picture: distances in the plane like distances in the graph."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nrm.plot.pictures import Array

ROUNDS = 300
MANY = 120  # with more nodes, one start has to do
GAP = 1.5  # between the parts of a graph that are not connected, in lengths of an edge


def lay_out(count: int, pairs: npt.NDArray[np.int64]) -> Array:
    """A place ``(count, 2)`` for every node, one edge about 1 long; the same graph always looks the same.

    The stress ``sum over pairs of (|p_i - p_j| - d_ij)^2 / d_ij^2`` with the distances ``d`` of the graph is made small
    by majorization, from the plane that fits the distances best. Parts that are not connected stand side by side.

    >>> square = lay_out(4, np.array([[0, 1], [1, 2], [2, 3], [3, 0]]))
    >>> bool(np.allclose(np.linalg.norm(square - np.roll(square, 1, axis=0), axis=1), 1, atol=0.3))
    True
    """
    distances = _distances(count, pairs)
    places, left = np.zeros((count, 2)), 0.0
    waiting = np.ones(count, dtype=bool)
    while waiting.any():
        part = np.isfinite(distances[int(np.argmax(waiting))]) & waiting
        waiting &= ~part
        own = _turned(_settled(distances[np.ix_(part, part)]))
        places[part] = own - own.min(0) * [1, 0] + [left, 0]
        left = float(places[part][:, 0].max()) + GAP
    return places


def _distances(count: int, pairs: npt.NDArray[np.int64]) -> Array:
    """The number of edges between every two nodes, in whatever direction; infinite if there is no way."""
    near = np.zeros((count, count), dtype=bool)
    near[pairs[:, 0], pairs[:, 1]] = near[pairs[:, 1], pairs[:, 0]] = True
    distances = np.full((count, count), np.inf)
    reached = np.eye(count, dtype=bool)
    front, steps = reached, 0
    while front.any():
        distances[front] = steps
        front = (front.astype(np.float32) @ near.astype(np.float32) > 0) & ~reached
        reached = reached | front
        steps += 1
    return distances


def _settled(distances: Array) -> Array:
    """Places of one connected part: the least stress from several starts, because a start may leave a ring folded."""
    n = len(distances)
    if n < 3:
        return np.column_stack([np.arange(n, dtype=np.float64), np.zeros(n)])
    weights = (distances + np.eye(n)) ** -2.0 * (1 - np.eye(n))
    inverse: Array = np.linalg.pinv(np.diag(weights.sum(1)) - weights).astype(np.float64)
    found = [_majorized(start, distances, weights, inverse) for start in _starts(distances)]
    return min(found, key=lambda places: float((weights * (_gaps(places) - distances) ** 2).sum()))


def _majorized(places: Array, distances: Array, weights: Array, inverse: Array) -> Array:
    for _ in range(ROUNDS):
        pulls = weights * distances / np.maximum(_gaps(places), 1e-9)
        moved: Array = inverse @ ((np.diag(pulls.sum(1)) - pulls) @ places)
        if float(np.abs(moved - places).max()) < 1e-4:
            return moved
        places = moved
    return places


def _gaps(places: Array) -> Array:
    gaps: Array = np.linalg.norm(places[:, None] - places[None], axis=2)
    return gaps


def _starts(distances: Array) -> list[Array]:
    """Planes through the main axes of the centred squared distances; a little bend so that nothing folds."""
    n = len(distances)
    centre = np.eye(n) - 1.0 / n
    values, axes = np.linalg.eigh(-0.5 * centre @ distances**2 @ centre)
    spread = (axes * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    bend = 0.05 * np.column_stack([np.cos(np.arange(n) * 2.4), np.sin(np.arange(n) * 2.4)])
    planes = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3)] if 3 < n <= MANY else [(0, 1)]
    return [spread[:, plane] + k * bend for plane in planes for k in ((1, 20) if n <= MANY else (1,))]


def _turned(places: Array) -> Array:
    """The longer axis lies flat, the middle at 0."""
    places = places - places.mean(0)
    _, axes = np.linalg.eigh(places.T @ places)
    turned: Array = places @ axes[:, ::-1]
    signs = np.where((turned**3).sum(0) < 0, -1.0, 1.0)
    return turned * signs


# ---- molecules -------------------------------------------------------------------------------------------------------


def lay_out_molecule(pairs: npt.NDArray[np.int64], labels: Sequence[str]) -> Array | None:
    """The places that RDKit gives the atoms of a molecule, one bond about 1 long; None where it is not asked.

    It is asked where it is installed, every label is the symbol of an element, and no bond is a loop. Rings are regular
    then, and angles as chemists draw them.
    """
    if not importlib.util.find_spec("rdkit") or not len(pairs) or bool((pairs[:, 0] == pairs[:, 1]).any()):
        return None
    from rdkit import Chem
    from rdkit.Chem import rdDepictor

    table = Chem.GetPeriodicTable()
    symbols = {table.GetElementSymbol(number) for number in range(1, 119)}
    if not all(label in symbols for label in labels):
        return None
    molecule = Chem.RWMol()
    for label in labels:
        molecule.AddAtom(Chem.Atom(label))
    for a, b in sorted({(min(pair), max(pair)) for pair in pairs.tolist()}):
        molecule.AddBond(int(a), int(b), Chem.BondType.SINGLE)
    molecule.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(molecule)
    rdDepictor.SetPreferCoordGen(False)
    rdDepictor.Compute2DCoords(molecule)
    places: Array = np.array(molecule.GetConformer().GetPositions())[:, :2]
    lengths = np.linalg.norm(places[pairs[:, 0]] - places[pairs[:, 1]], axis=1)
    return places / max(float(np.median(lengths)), 1e-9)
