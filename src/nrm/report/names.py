"""Names that people give to nodes of a network. They belong to the model, and come back whenever it is looked at.

They are kept by the digest of its weights, one small file for each model, in the folder for data of this user:
``$NRM_HOME/names``, or ``nrm/names`` where the system keeps such data.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from torch import nn

from nrm.errors import QuestionError, ResultFileError
from nrm.files import write_text
from nrm.measure import Circuit, Measure, model_digest

SCHEMA = 1
LONGEST, MOST = 60, 2000
"""Letters of a name, and names of a model."""
MOST_SETS, LONGEST_NOTE = 64, 4000
"""Named parts of one input, and letters of the note about it."""

Notes = dict[str, Any]


def node_names(of: Circuit | Measure | nn.Module | str) -> dict[str, str]:
    """The names that nodes of a model were given, such as ``{"model.layers.23.self_attn.head(3)": "mover"}``.

    Args:
        of: the model, a measure or a circuit of it, or the digest of its weights.

    >>> node_names("no such model")
    {}
    """
    return dict(_read(_digest(of))["names"])


def name_node(of: Circuit | Measure | nn.Module | str, node: str, name: str) -> dict[str, str]:
    """Gives a node of a model a name, or takes it away where the name is empty; returns all names of the model."""
    digest, name = _digest(of), name.strip()
    if not digest:
        raise QuestionError("names belong to a model", got="a circuit that does not say of which model it is")
    if len(name) > LONGEST or not name.isprintable():
        raise QuestionError("not a name", got=repr(name)[:80], expected=f"at most {LONGEST} letters")
    kept = _read(digest)
    kept["names"] = {one: given for one, given in {**kept["names"], node: name}.items() if given}
    if len(kept["names"]) > MOST:
        raise QuestionError("too many names", got=str(len(kept["names"])), expected=f"at most {MOST} of one model")
    _write(digest, kept)
    return dict(kept["names"])


def input_notes(of: Circuit | Measure | nn.Module | str, input: str) -> Notes:
    """What people wrote about an input of a model: ``sets``, parts of it by name, and a ``note``.

    ``input`` is the digest of the input (:func:`nrm.report.named.input_digest`).
    """
    found = _read(_digest(of))["inputs"].get(input, {})
    return {"sets": dict(found.get("sets", {})), "note": str(found.get("note", ""))}


def keep_notes(of: Circuit | Measure | nn.Module | str, input: str, notes: Notes) -> None:
    """Keeps what people wrote about an input; without sets and note it is forgotten."""
    digest = _digest(of)
    sets, note = notes["sets"], notes["note"]
    if len(sets) > MOST_SETS or len(note) > LONGEST_NOTE:
        raise QuestionError(
            "too much for one input", got=f"{len(sets)} names, {len(note)} letters",
            expected=f"at most {MOST_SETS} names and {LONGEST_NOTE} letters",
        )  # fmt: skip
    kept = _read(digest)
    kept["inputs"] = {**kept["inputs"], input: {"sets": sets, "note": note}}
    if not sets and not note:
        del kept["inputs"][input]
    _write(digest, kept)


def _read(digest: str) -> dict[str, Any]:
    """What is kept of a model."""
    file = names_file(digest)
    if not file.is_file():
        return {"names": {}, "inputs": {}}
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        if facts["schema"] != SCHEMA:
            raise ValueError(f"schema {facts['schema']!r}")
        names = {str(node): str(name) for node, name in facts["names"].items()}
        inputs = {str(one): dict(found) for one, found in facts.get("inputs", {}).items()}
        return {"names": names, "inputs": inputs}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ResultFileError(
            "the names of nodes cannot be read", where=os.fspath(file), got=f"{type(problem).__name__}: {problem}",
            hint="mend the file, or remove it",
        ) from None  # fmt: skip


def _write(digest: str, kept: dict[str, Any]) -> None:
    file = names_file(digest)
    facts = {"schema": SCHEMA, "model": digest, "names": kept["names"]}
    text = json.dumps(facts | ({"inputs": kept["inputs"]} if kept["inputs"] else {}), indent=1, ensure_ascii=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except OSError as problem:
        raise ResultFileError(
            "the name cannot be kept", where=os.fspath(file), got=f"{type(problem).__name__}: {problem.strerror}",
            hint="NRM_HOME=FOLDER names another folder",
        ) from None  # fmt: skip


def names_file(digest: str) -> Path:
    """Where the names of a model are kept."""
    return _home() / "names" / f"{''.join(c if c.isalnum() else '-' for c in digest)}.json"


def _home() -> Path:
    """The folder for what this user keeps with nrm."""
    given = os.environ.get("NRM_HOME")
    if given:
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "nrm"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "nrm"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "nrm"


def _digest(of: Any) -> str:
    if isinstance(of, str):
        return of
    if isinstance(of, Circuit):
        return of.model
    return model_digest(of) if isinstance(of, nn.Module) else str(of.inner.origin.digest())
