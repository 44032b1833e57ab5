"""Starting and ending the explorer."""

from __future__ import annotations

import html
import importlib
import os
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from nrm.errors import NrmError, QuestionError
from nrm.explorer.items import Items
from nrm.explorer.session import Session, class_names
from nrm.extras import extra
from nrm.jobs import Ranking, open_dataset, open_store
from nrm.measure import Measure, read_options
from nrm.report import References

HOST = "127.0.0.1"
HEIGHT = 980
"""The height of the page in a notebook."""
DOOR = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={url}"><title>nrm</title></head>
<body><a href="{url}">the explorer</a></body></html>
"""
"""A page that leads to another one."""


class Explorer:
    """A running explorer: ``url`` is its address with the token, ``open()`` shows it, ``close()`` ends it.

    One that does not block is shown by notebooks, in a frame.
    """

    def __init__(self, session: Session, port: int | None, inline: bool = False) -> None:
        with extra("web", "nrm.explore"):
            import uvicorn

            room = importlib.import_module("nrm.explorer.app")  # it needs the same extra
        self._session, self._inline = session, inline
        self._door: tempfile.TemporaryDirectory[str] | None = None
        self._socket = _listen(port)
        token = secrets.token_urlsafe(24)
        place = f"{HOST}:{self._socket.getsockname()[1]}"
        hosts = frozenset({place, f"localhost:{self._socket.getsockname()[1]}"})
        self.url = f"http://{place}/?token={token}"
        app = room.make_app(session, token, hosts, inline)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        serve = self._server.run
        self._thread = threading.Thread(target=lambda: serve(sockets=[self._socket]), name="nrm-server", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)

    def open(self) -> None:
        """Opens a browser. Its command line, which all users of a machine can read, names a private file only."""
        if self._door is None:
            self._door = tempfile.TemporaryDirectory(prefix="nrm-")  # only this user may look into it
        door = Path(self._door.name, "explorer.html")
        door.write_text(DOOR.format(url=html.escape(self.url)), encoding="utf-8")
        webbrowser.open(door.as_uri())

    def wait(self) -> None:
        """Returns when the explorer is closed, or by Ctrl-C."""
        try:
            while self._thread.is_alive():
                self._thread.join(0.5)
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Ends the server and everything that is being computed."""
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._session.worker.close()
        self._socket.close()
        if self._door is not None:
            self._door.cleanup()

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"explorer at {self.url}"

    def _repr_html_(self) -> str:
        if not self._inline or not self._thread.is_alive():
            return f"<code>{html.escape(repr(self))}</code>"
        return f'<iframe src="{html.escape(self.url)}" width="100%" height="{HEIGHT}" style="border:0"></iframe>'


def _listen(port: int | None) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port or 0))
    except (OSError, OverflowError) as error:
        listening.close()
        raise NrmError(
            "the port cannot be used",
            where="nrm.explore",
            got=f"port={port}: {error}",
            hint="port=None takes a free one",
        ) from error
    return listening


def explore(
    model: nn.Module,
    data: Any = None,
    *,
    transform: Callable[..., Any] | None = None,
    labels: Any = None,
    names: Callable[[Any], Any] | None = None,
    store: Any = None,
    dataset: Any = None,
    other: nn.Module | None = None,
    port: int | None = None,
    open: bool = True,
    block: bool = True,
    **options: Any,
) -> Explorer:
    """Serves a page on this machine on which the decisions of a model can be looked at and asked about.

    Args:
        model: the model.
        data: a folder of images, a tensor with samples first, a list (of texts, of graphs, of whatever the model takes)
            or a data set. More images or texts can be added on the page.
        transform: turns a PIL image into the model's input (without one: RGB from 0 to 1, in its own size), or a text;
            a tokenizer of transformers will do.
        labels: the names of the classes, or names by layer as in :func:`nrm.measure`.
        names: from the inputs of one sample to the names of its positions: tokens, atoms. Tokenizers know them.
        store: what :func:`nrm.relmax` gave, or the folder it wrote to: the samples in which a node or a pair counts
            most are shown beside it.
        dataset: the data set of the store, for the pictures of these samples, unless the store keeps them
            (``nrm.jobs.keep_crops``); a folder of images is read with ``transform``, as the job did.
        other: another model for the same inputs, such as another checkpoint: the page compares both side by side.
        port: None takes a free one.
        open: open a browser.
        block: with False the explorer runs beside the caller, for notebooks, until its ``close()``.
        options: those of :func:`nrm.measure` (``rules``, ``bias``, ...); ``against`` is a reference: then the page
            explains differences from it.

    Only programs of this machine that know the token of the address can ask, and nothing that they send is run.
    """
    read_options({name: value for name, value in options.items() if name not in ("target", "progress")})
    if isinstance(options.get("against"), list):
        raise QuestionError(
            "a page shows a contrast with one reference", where="nrm.explore", got="against=[...]",
            expected="one reference, or a word", hint="nrm.reference('mean', data)",
        )  # fmt: skip
    named = labels if labels is None or isinstance(labels, Mapping) else {"output": labels}
    references = None
    if store is not None:
        found = store if isinstance(store, Ranking) else open_store(store)
        samples = open_dataset(dataset, transform) if isinstance(dataset, str | os.PathLike) else dataset
        references = References(found, model, samples, options, class_names(named))
    session = Session(model, Items(data, transform, names), named, options, references, other)
    explorer = Explorer(session, port, inline=not block)
    print(f"{explorer}\n" + ("Ctrl-C ends it" if block else "explorer.close() ends it"))
    if open:
        explorer.open()
    if block:
        explorer.wait()
    return explorer


def explore_measure(R: Measure, *, port: int | None = None, open: bool = False) -> Explorer:
    """Serves the samples of a measure, beside the caller; see :meth:`nrm.Measure.explore`."""
    network, labels = R.inner.network, {name: list(names) for name, names in R.labels.items() if name != R.input.name}
    options: dict[str, Any] = {
        "rules": network.composite, "zero": network.zero, "normalize": network.normalize, "dtype": network.tape.dtype,
    }  # fmt: skip
    if network.tape.runs is None:
        options["bias"] = network.bias
    values = R.values(R.input) if network.tape.runs is None and len(network.tape.inputs) == 1 else None
    session = Session(R.inner.origin.model, Items(values), labels, options)
    for i in range(len(R)):
        session.know(i, R if len(R) == 1 else R.sample(i))
    explorer = Explorer(session, port, inline=True)
    if open:
        explorer.open()
    return explorer
