"""What people write on the page: names of nodes and groups, parts of an input, notes. They are kept with the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from torch import nn

from nrm.errors import QuestionError
from nrm.explorer.items import Items
from nrm.explorer.reading import read_set
from nrm.measure import model_digest
from nrm.report import (
    View,
    input_digest,
    input_notes,
    keep_notes,
    name_node,
    names_file,
    node_names,
    read_key,
    write_key,
)

LONGEST = 60
"""Letters of a name."""

KIND = "annotated view"
"""What a saved view calls itself."""

Question = Mapping[str, Any]


class SessionNotes:
    """The names and notes of a session; ``view`` finds the view that they are written on."""

    def __init__(self, model: nn.Module, items: Items, view: Callable[[Question], View]) -> None:
        self._model, self._items, self._view = model, items, view
        self._inputs: dict[str, str] = {}

    @cached_property
    def digest(self) -> str:
        """The fingerprint of the model, to which the names belong."""
        return model_digest(self._model)

    def annotate(self, item: str, view: View) -> dict[str, Any]:
        """Gives a view the names that are known of its nodes and its input; returns what the page shows besides."""
        input = self._inputs[item] = input_digest(view.R)
        notes = input_notes(self.digest, input)
        view.annotate(node_names(self.digest), notes["sets"])
        return {"note": notes["note"], "home": str(names_file(self.digest)), "model": self.digest, "input": input}

    def name(self, question: Question) -> dict[str, Any]:
        """Gives a set a name, or takes it away (``made`` is nothing); a name that was there before is answered."""
        view, name, made = self._view(question), question.get("name"), question.get("made")
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST or not name.isprintable():
            raise QuestionError("not a name", got=repr(name)[:80], expected=f"a text of at most {LONGEST} letters")
        input = input_digest(view.R)
        before = self._forget(name.strip(), input)
        if made is not None:
            read_set(view, made)  # refused now rather than when it comes back
            self._keep(name.strip(), made, input)
        return {"before": before, "home": str(names_file(self.digest))}

    def _keep(self, name: str, made: Mapping[str, Any], input: str) -> None:
        key = write_key(made)
        if key is not None:
            name_node(self.digest, key, name)
            return
        notes = input_notes(self.digest, input)
        keep_notes(self.digest, input, {**notes, "sets": {**notes["sets"], name: dict(made)}})

    def _forget(self, name: str, input: str) -> Any:
        """Takes a name away, from nodes and from parts of the input; returns what it stood for."""
        for key, known in node_names(self.digest).items():
            made = read_key(key)
            if known == name and made is not None:
                name_node(self.digest, key, "")
                return made
        notes = input_notes(self.digest, input)
        made = notes["sets"].pop(name, None)
        if made is not None:
            keep_notes(self.digest, input, notes)
        return made

    def note(self, question: Question) -> dict[str, Any]:
        """Keeps the note about the input of a view; the one before is answered."""
        view, text = self._view(question), question.get("note")
        if not isinstance(text, str):
            raise QuestionError("not a note", got=repr(text)[:80], expected="a text")
        input = input_digest(view.R)
        notes = input_notes(self.digest, input)
        keep_notes(self.digest, input, {**notes, "note": text})
        return {"before": notes["note"], "home": str(names_file(self.digest))}

    def open(self, saved: Question) -> dict[str, Any]:
        """An annotated view that was saved: its names and note are kept, and its input is found again."""
        if saved.get("kind") != KIND or not isinstance(saved.get("address"), dict):
            raise QuestionError("not an annotated view", expected="a file that this page has saved")
        if saved.get("model") != self.digest:
            raise QuestionError(
                "this view is of another model", got=str(saved.get("model"))[:40], expected=self.digest,
                hint="the same class with the same weights",
            )  # fmt: skip
        title, input = str(saved.get("title", "")), str(saved.get("input", ""))
        known = [id for id, digest in self._inputs.items() if digest == input]
        named = [entry["id"] for entry in self._items.listed() if entry["name"] == title]
        if not known and not named:
            raise QuestionError("the input of this view is not here", got=repr(title)[:80], hint="add it to the page")
        sets, note = _read_saved(saved)
        for name, made in sets.items():
            self._forget(name, input)
            self._keep(name, made, input)
        if note:
            keep_notes(self.digest, input, {**input_notes(self.digest, input), "note": note})
        words = {str(key): str(value) for key, value in saved["address"].items() if key != "item"}
        return {"address": {"item": (known or named)[0], **words}}


def _read_saved(saved: Question) -> tuple[dict[str, Mapping[str, Any]], str]:
    """The named sets and the note of a file, checked as those of a page are."""
    named, note = saved.get("named", []), saved.get("note", "")
    whole = isinstance(named, list) and isinstance(note, str) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("made"), dict)
        and 0 < len(one["name"]) <= LONGEST and one["name"].isprintable() for one in named
    )  # fmt: skip
    if not whole:
        raise QuestionError("not an annotated view", got="names that are none", expected="a file of this page")
    return {one["name"]: one["made"] for one in named}, note


__all__ = ["SessionNotes"]
