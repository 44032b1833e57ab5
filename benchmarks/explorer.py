"""How long the explorer takes to answer on VGG16: the first picture, the columns, the ribbons, clicks.

Seconds as a person waits for them, beside the processor time of one thread and multiples of the network's own forward
pass, which mean the same on a busy machine. Needs the real data (``NRM_DATA``) and the extra ``web``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import torch

import nrm

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Page:
    """Asks a running explorer as its page does."""

    def __init__(self, url: str) -> None:
        self._url, _, self._token = url.partition("?token=")

    def ask(self, path: str, question: dict[str, Any] | None = None) -> dict[str, Any]:
        """An answer of the server."""
        body = None if question is None else json.dumps(question).encode()
        request = urllib.request.Request(self._url + path, body, {"X-Token": self._token})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return dict(json.load(answer))

    def until(self, job: str, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """The parts of a job, as soon as there are enough of them."""
        parts: list[dict[str, Any]] = []
        while not wanted(parts):
            news = self.ask(f"api/jobs/{job}?since={len(parts)}")
            parts += news["parts"]
            if news["state"] in ("failed", "cancelled"):
                raise RuntimeError(news["error"])
        return parts


def main() -> None:
    """Serve, ask, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    sys.path += [str(ROOT / "tests")]
    models = importlib.import_module("real.models")
    data = pathlib.Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
    model = models.load("VGG16-Imagenette", data)
    photos = sorted((data / "imagenette").glob("val/*/*"))[:60:10]
    images = torch.stack([models.photo(photo) for photo in photos])
    forward = min(_timed(lambda: _run(model, images[:1])) for _ in range(5))
    print(f"forward pass: {forward[0]:.2f} s, {forward[1]:.2f} s of processor time, {threads} threads")
    with nrm.explore(model, images, labels=models.IMAGENETTE, open=False, block=False) as explorer:
        page = Page(explorer.url)
        _view(page, 0)  # what is loaded once, such as scikit-learn, is not counted
        rows = [_view(page, item) for item in range(1, 3)][-1]
    print(f"{'until':<34}{'s':>8}{'processor s':>14}{'forward passes':>17}")
    for name, (wall, used) in rows.items():
        print(f"{name:<34}{wall:>8.2f}{used:>14.2f}{used / forward[1]:>17.2f}")


def _view(page: Page, item: int) -> dict[str, tuple[float, float]]:
    rows = {}
    begin = time.perf_counter(), time.process_time()

    def note(name: str) -> None:
        rows[name] = time.perf_counter() - begin[0], time.process_time() - begin[1]

    job = page.ask("api/views", {"item": str(item), "agreed": True})["job"]
    for name, wanted in (
        ("the first picture", lambda parts: bool(parts)), ("columns", lambda parts: any("columns" in p for p in parts)),
        ("all ribbons", lambda parts: any(p.get("table", {}).get("at") == 3 for p in parts)),
    ):  # fmt: skip
        page.until(job, wanted)
        note(name)
    for name, nodes in (("early node", [[0, 3]]), ("late node", [[3, 3]]), ("ribbon", [[2, 2], [3, 2]])):
        rows[f"a click on a {name}, at once"] = _timed(lambda nodes=nodes: _click(page, job, nodes))  # type: ignore[misc]
    rows["a click that was made before"] = _timed(lambda: _click(page, job, [[3, 3]]))
    return rows


def _click(page: Page, view: str, nodes: list[list[int]]) -> None:
    page.until(page.ask("api/selections", {"view": view, "nodes": nodes})["job"], bool)


def _run(model: torch.nn.Module, image: torch.Tensor) -> None:
    with torch.no_grad():
        model(image)


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    begin = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


if __name__ == "__main__":
    main()
