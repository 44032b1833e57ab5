"""Sets, partitions, targets and rules as text, written as in Python but for quotes; nothing in a text is ever run.

``features.28.channel(12)`` is ``nrm.layer("features.28").channel(12)``.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nrm import rules as known_rules
from nrm.errors import InputError, NrmError, QuestionError
from nrm.measure import find_class, output_names
from nrm.questions import Layer, Partition, Set
from nrm.report import BY, Pick
from nrm.rules import NAMES, rule_in_words

EVENTS = ("channel", "position", "head", "step", "edge")
AXES = ("channels", "positions", "heads", "steps", "edges")
EVENT = re.compile(rf"(?P<layer>.+)\.(?P<kind>{'|'.join(EVENTS)})\((?P<index>.*)\)", re.S)
AXIS = re.compile(rf"(?P<layer>.+?)\.(?P<kind>{'|'.join(AXES)})(?P<index>\[.*\])?", re.S)
NEURONS = re.compile(r"(?P<layer>.+?)(?P<index>\[[^\[\]]*\])", re.S)
RULES_EXAMPLE = "Gamma(0.25), ZPlus, AlphaBeta(2, 1)"
SET_EXAMPLE = "features.28.channel(12), features.28.all, features.28[3, 4:8, 4:8]"


def read_layer(text: str) -> Layer:
    """A layer by name; ``.input`` and ``.skip`` at its end are what it receives, and its skip connection."""
    for word in ("input", "skip"):
        name = text.removesuffix(f".{word}")
        if name != text and name:
            layer: Layer = getattr(Layer(name), word)
            return layer
    return Layer(text)


def read_set(text: str) -> Set:
    """A set of neurons of one layer.

    >>> print(read_set("features.28.channel(12)"), read_set("conv[3, 4:8, 4:8]"), read_set("conv.channel(1, 2)"))
    features.28.channel(12) conv[3, 4:8, 4:8] conv.channel([1, 2])
    """
    text = text.strip()
    try:
        if text.endswith(".all"):
            return read_layer(text.removesuffix(".all")).all
        found = EVENT.fullmatch(text)
        if found:
            event: Set = getattr(read_layer(found["layer"]), found["kind"])(_indices(found["index"]))
            return event
        found = AXIS.fullmatch(text) or NEURONS.fullmatch(text)
        if found and found["index"]:
            whole = read_layer(found["layer"])
            part = getattr(whole, found["kind"]) if "kind" in found.re.groupindex else whole
            chosen = part[_slices(found["index"])]
            if isinstance(chosen, Set):
                return chosen
    except NrmError:
        raise
    except (ValueError, SyntaxError, TypeError) as error:
        raise InputError("the set cannot be read", got=text, expected=SET_EXAMPLE) from error
    raise InputError("not a set of neurons", got=text, expected=SET_EXAMPLE)


def read_part(text: str) -> Partition | Set | Pick:
    """A layer divided into blocks (by channels unless it says something else), or a set.

    >>> read_part("features.28"), str(read_part("conv.positions")), str(read_part("conv.channel(3)"))
    (Pick(layer='features.28', by='channels'), 'conv.positions', 'conv.channel(3)')
    """
    text = text.strip()
    name, _, by = text.rpartition(".")
    if name and by in BY and by not in AXES:
        return Pick(name, by)
    found = AXIS.fullmatch(text)
    if found:
        whole: Any = getattr(read_layer(found["layer"]), found["kind"])
        try:
            part: Partition | Set = whole[_slices(found["index"])] if found["index"] else whole
        except (ValueError, SyntaxError, TypeError) as error:
            raise InputError("the layer cannot be read", got=text, expected="features.28.channels[:8]") from error
        return part
    if EVENT.fullmatch(text) or text.endswith(".all") or re.search(r"\[[^\]]*[:,]", text):
        return read_set(text)
    if not text:
        raise InputError("a layer has a name", got="nothing", expected="features.28, or features.28.channels")
    layer = read_layer(text)
    return Pick(text, "channels") if layer.consumer is None else layer.channels


def read_parts(texts: Sequence[str]) -> list[Partition | Pick]:
    """Divided layers."""
    found = [(text, read_part(text)) for text in texts]
    for text, part in found:
        if isinstance(part, Set):
            raise InputError("a set is no divided layer", got=text, expected="features.28, or features.28.positions")
    return [part for _, part in found if not isinstance(part, Set)]


def read_question(text: str) -> tuple[Partition | Set, ...]:
    """Layers and sets that are asked about together: ``a.channels x b.channels``."""
    parts = [read_part(part) for part in re.split(r"\s+x\s+", text.strip())]
    for part in parts:
        if isinstance(part, Pick) and part.by not in AXES:
            raise InputError(
                "these blocks differ from sample to sample", got=text, expected="channels, positions, heads"
            )
    return tuple(getattr(Layer(p.layer), p.by) if isinstance(p, Pick) else p for p in parts)


def read_sets(given: Sequence[str], path: Path | None = None) -> dict[str, list[Set]]:
    """Named sets: ``name=set`` from the command line, and a file: the same line by line, or JSON.

    A name that is given again stands for any of its sets.
    """
    found: dict[str, list[Set]] = {}
    for name, text in [*([] if path is None else _file(path)), *map(_named, given)]:
        found.setdefault(name, []).append(read_set(text))
    return found


def _named(text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or not name.strip() or not rest.strip():
        raise InputError("a set needs a name", got=text, expected="fin=features.28.channel(12)")
    return name.strip(), rest.strip()


def _file(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            lines = (line.partition(" #")[0].strip() for line in text.splitlines())
            return [_named(line) for line in lines if line and not line.startswith("#")]
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise InputError("the sets cannot be read", got=f"{path}: {error}"[:200]) from error
    if not isinstance(found, Mapping):
        raise InputError("the sets cannot be read", got=str(path), expected='{"fin": "features.28.channel(12)"}')
    return [
        (str(name), str(one)) for name, sets in found.items() for one in (sets if isinstance(sets, list) else [sets])
    ]


def read_target(text: str | None, labels: Sequence[str] | Mapping[int, str] | None, tokens: bool) -> Any:
    """What is explained: a class by number or name, indices ``-1,207``, ``logits`` or ``softmax``; None: the top one.

    >>> read_target("7", None, False), read_target("tench", ["shark", "tench"], False), read_target("-1,7", None, True)
    (7, 1, (-1, 7))
    """
    if text is None or text in ("logits", "softmax"):
        return text
    if re.fullmatch(r"\s*-?\d+(\s*,\s*-?\d+)*\s*", text):
        numbers = tuple(int(number) for number in text.split(","))
    else:
        try:
            numbers = (find_class(text, output_names({"output": labels})),)
        except QuestionError as error:
            names = ", or the name of a class" if labels else " (--labels gives names)"
            expected = f"a number, logits, softmax{names}: {error.expected}"
            raise InputError(error.what, got=text, expected=expected, hint=error.hint) from None
    if len(numbers) > 1:
        return numbers
    return (-1, numbers[0]) if tokens else numbers[0]


def read_rules(text: str) -> Any:
    """The rules that a text says: a composite's name, or a rule as in Python, with its usual numbers if it has none.

    >>> read_rules("epsilon-plus"), read_rules("Gamma(0.5)"), read_rules("zplus"), read_rules("AlphaBeta(2, beta=1)")
    ('epsilon-plus', Gamma(gamma=0.5), ZPlus(), AlphaBeta(alpha=2, beta=1))
    """
    text = text.strip()
    if text == "auto" or text in NAMES:
        return text
    name, opening, rest = text.partition("(")
    usual = rule_in_words(name)
    if usual is None:
        near = difflib.get_close_matches(text.lower(), NAMES, n=2)
        raise InputError(
            "no such rules", got=f"--rules {text}"[:120], expected=f"{RULES_EXAMPLE}, auto, {', '.join(NAMES)}",
            hint=f"--rules {near[0]}" if near else None,
        )  # fmt: skip
    rule = getattr(known_rules, usual.removeprefix("nrm.").partition("(")[0])
    try:
        call = ast.parse(f"_({rest}" if opening else usual, mode="eval").body
        if not isinstance(call, ast.Call) or isinstance(call.func, ast.Call) or None in [k.arg for k in call.keywords]:
            raise ValueError(text)
        numbers = [ast.literal_eval(one) for one in call.args]
        return rule(*numbers, **{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})
    except NrmError as error:
        raise error.at(f"--rules {text}"[:120]) from None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise InputError("the rule cannot be read", got=f"--rules {text}"[:120], expected=RULES_EXAMPLE) from error


def _indices(text: str) -> Any:
    """Integers or lists of them; several are their list."""
    found = ast.literal_eval(f"({text},)")
    return found[0] if len(found) == 1 else list(found)


def _slices(text: str) -> Any:
    """What stands in brackets: integers, lists of them, slices, an ellipsis."""
    tree = ast.parse(f"_{text}", mode="eval").body
    if not isinstance(tree, ast.Subscript):
        raise ValueError(text)
    return _index(tree.slice)


def _index(node: ast.expr) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_index(part) for part in node.elts)
    if isinstance(node, ast.Slice):
        return slice(
            *(None if part is None else ast.literal_eval(part) for part in (node.lower, node.upper, node.step))
        )
    return ast.literal_eval(node)
