"""Many inputs at once: what the network says of each, laid out by how its decisions flow, and compared.

The flow of a decision is a vector here: the relevance of every channel of two layers. Inputs whose vectors are near
each other were decided in the same way. t-SNE puts them on a plane, k-means into clusters.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nrm.errors import NrmError, NrmWarning, QuestionError
from nrm.explorer.items import Items
from nrm.explorer.worker import PageJob, Worker
from nrm.extras import MissingExtraError, extra
from nrm.largest import best_first
from nrm.measure import Measure
from nrm.report import Thumb, channel_layers, read_thumb

MOST, FEWEST = 1000, 6
"""How many inputs are looked at, and how many are needed before they are laid out."""
CLUSTERS, CHAINS, NEAR = 6, 3, 3
"""At most so many clusters, chains that are listed of each, and inputs in its middle that they are found in."""
STRONG, LISTED = 4, 12
"""Channels of a layer that chains are looked for in, and rows of a comparison."""

Question = Mapping[str, Any]
Vectors = npt.NDArray[np.float64]


class Flowing(NamedTuple):
    """What is known of one input: what the page shows, and the relevance of the channels of some layers."""

    row: dict[str, Any]
    layers: tuple[str, ...]
    shares: tuple[Vectors, ...]

    @property
    def vector(self) -> Vectors:
        """All shares in one."""
        return np.concatenate(self.shares) if self.shares else np.zeros(0)


class SessionOverview:
    """The overview of a session; ``once`` measures an input without keeping it, ``name`` is what a class is called."""

    def __init__(self, worker: Worker, items: Items, once: Callable[[str, PageJob], Measure]) -> None:
        self._worker, self._items, self._once = worker, items, once
        self._known: dict[str, Flowing] = {}
        self._clusters: dict[str, int] = {}

    def look(self, question: Question) -> PageJob:
        """The inputs one after the other, then their places, clusters and the chains of these."""
        count = question.get("count")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
            raise QuestionError("not a number of inputs", got=repr(count)[:80], expected=f"1 to {MOST}")
        entries = self._items.listed()[:count]

        def work(job: PageJob) -> None:
            job.patient = True
            for n, entry in enumerate(entries, 1):
                job.tell(f"input {n} of {len(entries)}")
                if entry["id"] not in self._known:
                    self._known[entry["id"]] = self._flow(entry["id"], job)
                job.add({"row": self._known[entry["id"]].row})
            job.tell("inputs that are decided alike")
            job.add({"plane": self._lay_out([entry["id"] for entry in entries], job)})

        return self._worker.submit(work)

    def _flow(self, id: str, job: PageJob) -> Flowing:
        item = self._items[id]
        row: dict[str, Any] = {"id": id, "name": item.name, "truth": item.truth()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NrmWarning)  # every input has its own certificate where it is opened
                R = self._once(id, job)
                layers = channel_layers(R)
                shares = tuple(R(R[layer].channels)[0].double().cpu().numpy() for layer in layers)
                thumb: Thumb = read_thumb(R)
        except NrmError as error:
            return Flowing({**row, "error": str(error)}, (), ())
        except RuntimeError as error:  # what the network itself says of an input that does not fit it
            return Flowing({**row, "error": str(error).splitlines()[0][:200]}, (), ())
        return Flowing({**row, **thumb}, tuple(layers), shares)

    def _lay_out(self, ids: Sequence[str], job: PageJob) -> dict[str, Any]:
        """Places from 0 to 1, clusters, and what each of them has in common."""
        common = next((self._known[id].layers for id in ids if self._known[id].layers), ())
        ids = [id for id in ids if common and self._known[id].layers == common]
        vectors = np.array([self._known[id].vector for id in ids])
        if len(ids) < FEWEST:
            return {"note": f"at least {FEWEST} inputs are laid out by how their decisions flow"}
        try:
            with extra("cluster", "the overview"):
                places, labels = lay_out(vectors)
        except MissingExtraError as error:
            return {"note": str(error)}
        self._clusters = dict(zip(ids, labels.tolist(), strict=True))
        about = []
        for cluster in range(int(labels.max()) + 1):
            inside = [id for id, label in self._clusters.items() if label == cluster]
            middle = vectors[labels == cluster].mean(0)
            order = np.argsort(np.linalg.norm(vectors[labels == cluster] - middle, axis=1))
            about.append({"size": len(inside), "chains": self._chains([inside[n] for n in order[:NEAR]], job)})
        return {
            "places": dict(zip(ids, places.tolist(), strict=True)),
            "clusters": self._clusters, "about": about, "layers": list(common),
        }  # fmt: skip

    def _chains(self, ids: Sequence[str], job: PageJob) -> list[dict[str, Any]]:
        """The strongest chains through the layers that inputs have in common, on average."""
        layers = self._known[ids[0]].layers
        means = [np.mean([self._known[id].shares[k] for id in ids], axis=0) for k in range(len(layers))]
        strong = [best_first(np.abs(mean))[:STRONG].tolist() for mean in means]
        tables = []
        for id in ids:
            job.tell("what clusters have in common")
            R = self._once(id, job)
            parts = [R[layer].channels[channels] for layer, channels in zip(layers, strong, strict=True)]
            tables.append(R(*parts)[0].double().cpu().numpy())
        table = np.mean(tables, axis=0)
        best = [np.unravel_index(int(n), table.shape) for n in best_first(np.abs(table).ravel())[:CHAINS]]
        return [{"channels": [strong[k][int(i)] for k, i in enumerate(at)], "share": float(table[at])} for at in best]

    def compare(self, question: Question) -> dict[str, Any]:
        """The channels in which the mean flow of some inputs differs most from that of others."""
        sides = [self._read(question.get(name)) for name in ("one", "other")]
        layers = self._known[sides[0][0]].layers
        if any(self._known[id].layers != layers or not layers for id in itertools.chain(*sides)):
            raise QuestionError("these inputs do not pass the same layers", hint="compare inputs of one kind")
        rows = []
        for k, layer in enumerate(layers):
            one, other = (np.mean([self._known[id].shares[k] for id in side], axis=0) for side in sides)
            for n in best_first(np.abs(one - other))[:LISTED].tolist():
                rows.append({"layer": layer, "channel": n, "one": float(one[n]), "other": float(other[n])})
        rows.sort(key=lambda row: -abs(row["one"] - row["other"]))
        vectors = [np.mean([self._known[id].vector for id in side], axis=0) for side in sides]
        size = float(np.linalg.norm(vectors[0]) * np.linalg.norm(vectors[1]))
        return {"rows": rows[:LISTED], "alike": float(vectors[0] @ vectors[1]) / size if size else 0.0}

    def _read(self, given: Any) -> list[str]:
        if (
            not isinstance(given, list)
            or not given
            or not all(isinstance(id, str) and id in self._known for id in given)
        ):
            raise QuestionError("not some of the inputs", got=repr(given)[:80], expected="inputs of the overview")
        return given


def lay_out(vectors: Vectors) -> tuple[Vectors, npt.NDArray[np.int64]]:
    """Places on a plane, from 0 to 1, and clusters: as many as have the best silhouette."""
    from sklearn.cluster import KMeans
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score

    sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = vectors / np.where(sizes > 0, sizes, 1)
    if len(np.unique(rows.round(9), axis=0)) < FEWEST:
        return np.full((len(rows), 2), 0.5), np.zeros(len(rows), np.int64)
    near = min(30.0, (len(rows) - 1) / 3)
    places = TSNE(perplexity=near, init="pca", random_state=0).fit_transform(rows).astype(np.float64)
    low, high = places.min(0), places.max(0)
    tries = [KMeans(k, n_init=4, random_state=0).fit(rows).labels_ for k in range(2, min(CLUSTERS, len(rows) // 3) + 1)]
    labels = max(tries, key=lambda found: silhouette_score(rows, found), default=np.zeros(len(rows), np.int64))
    return (places - low) / np.where(high > low, high - low, 1), labels


__all__ = ["SessionOverview"]
