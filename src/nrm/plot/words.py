"""Relevance of tokens as coloured text: HTML for notebooks, which needs no extra, and a matplotlib picture."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nrm.errors import NrmError, QuestionError
from nrm.extras import extra
from nrm.files import write_text
from nrm.numbers import percent, short, with_minus
from nrm.plot.colors import ABOVE, BELOW, color_at, diverging
from nrm.plot.heat import ENDS, FRAME, INK, NOTE_POINTS, SCALE, find_limit, inches, note_rest, note_sign
from nrm.plot.pictures import Array, Picture, Scalar, read_line
from nrm.plot.saving import Size, draw_and_save, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER = 0.64
"""The width of a letter, in its size."""

SPACE, LINE = "\N{OPEN BOX}", "\N{RETURN SYMBOL}"
"""Stand for tokens that are nothing but a space or a line break."""


class ReadToken(NamedTuple):
    """A token as it is read: its text, whether a space goes before it and a line ends behind it."""

    text: str
    space: bool
    ends: bool


def text(
    relevance: Picture,
    tokens: Sequence[str],
    *,
    scale: float | str | None = SCALE,
    title: str | None = None,
    labels: tuple[str, str] = ENDS,
    value: Scalar | None = None,
    rest: Scalar | None = None,
) -> Text:
    """The tokens of a text in the colours of their relevance: red for the explained output, blue against it.

    Args:
        relevance: one number per token, ``(T,)`` or a batch of one, such as ``R(R.input.positions)``.
        tokens: the tokens as the tokenizer writes them (``tokenizer.convert_ids_to_tokens``). The marks of word
            beginnings (``Ġ``, ``▁``), of continued words (``##``) and of line breaks become what they mean; words
            without marks are put side by side.
        scale: the relevance that has the full colour, as in :func:`nrm.plot.heatmap`.
        title: text above the picture.
        labels: the words at the lower and upper end of the legend.
        value: the explained output (``R.value``); if it is negative, the picture says so.
        rest: the share of the mass that is not in the picture, such as that of the biases; noted below it.

    Returns:
        A value that notebooks show; ``.html`` is its source, ``.draw(ax=None)`` draws it with matplotlib,
        ``.save(path)`` writes a page or a picture.

    >>> print(text([0.7, -0.2, 0.5], ["▁The", "▁c", "at"]))
    The(+0.70) c(−0.20)at(+0.50)
    """
    try:
        values = read_line(relevance)
        if isinstance(tokens, str) or not all(isinstance(t, str) for t in tokens):
            raise QuestionError("tokens are a list of texts", got=repr(tokens)[:80], expected='["▁The", "▁cat", ...]')
        if len(tokens) != len(values):
            raise QuestionError(
                "tokens and relevance do not fit", got=f"{len(tokens)} tokens, {len(values)} numbers",
                expected="one number per token", hint="R(R.input.positions)[i] is the relevance of sample i's tokens",
            )  # fmt: skip
        notes = [*note_sign(value), *note_rest(rest), *([] if values.any() else ["no relevance here: all zero"])]
        limit = find_limit(values, scale)
    except NrmError as error:
        error.at("nrm.plot.text")
        raise
    return Text(tuple(read_pieces(tokens)), values, limit, title, labels, tuple(notes))


def read_pieces(tokens: Sequence[str]) -> list[ReadToken]:
    """What the marks of tokenizers mean.

    >>> "".join(" " * p.space + p.text for p in read_pieces(["play", "##ing", "well"]))
    'playing well'
    """
    marked = next((mark for mark in ("Ġ", "▁") if any(mark in t for t in tokens)), None)
    spaced = any(t[:1].isspace() or t[-1:].isspace() for t in tokens)
    pieces = []
    for i, token in enumerate(tokens):
        body = {"Ċ": "\n", "<0x0A>": "\n"}.get(token, token).replace("Ċ", "\n")
        if marked:
            space = body.startswith(marked)
            body = body.replace(marked, " ")
        elif spaced:
            space = body[:1] == " "
        else:
            space = not body.startswith("##")
            body = body.removeprefix("##") or body
        ends, bare = body.endswith("\n"), body.strip(" \n\t")
        shown = bare or (LINE if "\n" in body else SPACE if body else "")
        pieces.append(ReadToken(shown, bool(space and i), ends))
    return pieces


@dataclass(frozen=True, eq=False, repr=False)
class Text:
    """Tokens with their relevance. Notebooks show it; ``limit`` is the relevance that has the full colour."""

    pieces: tuple[ReadToken, ...]
    relevance: Array
    limit: float
    title: str | None = None
    labels: tuple[str, str] = ENDS
    notes: tuple[str, ...] = field(default=())

    @property
    def html(self) -> str:
        """The picture as HTML; everything that comes from the user is escaped."""
        words = "".join(self._span(p, float(r)) for p, r in zip(self.pieces, self.relevance, strict=True))
        title = f"<div style='font-weight:600;margin-bottom:.4em'>{html.escape(self.title)}</div>" if self.title else ""
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        return (
            f"<div style='font-family:sans-serif;max-width:60em;background:#fff;color:{INK};padding:.6em'>{title}"
            f"<div style='line-height:2;font-size:110%'>{words}</div>"
            f"<div style='font-size:80%;margin-top:.6em'>{self._legend()}{notes}</div></div>"
        )

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        parts = []
        for piece, r in zip(self.pieces, self.relevance, strict=True):
            number = with_minus(f"{r:+.2f}")
            parts.append(" " * piece.space + f"{piece.text}({number})" + "\n" * piece.ends)
        return "".join(parts)

    def _span(self, piece: ReadToken, r: float) -> str:
        level = r / self.limit
        style = f"background:{color_at(level)};color:{_ink(level)};border-radius:.2em;padding:.15em .1em"
        about = html.escape(f"{piece.text}: {with_minus(percent(r))}", quote=True)
        shown = f"<span style='{style}' title=\"{about}\">{html.escape(piece.text)}</span>"
        return (" " if piece.space else "<wbr>") + shown + ("<br>" if piece.ends else "")

    def _legend(self) -> str:
        colors = ",".join([*reversed(BELOW), "#ffffff", *ABOVE])
        low, high = (html.escape(label) for label in self.labels)
        bar = (
            f"<span style='display:inline-block;width:10em;height:.8em;border:1px solid {FRAME};"
            f"vertical-align:middle;margin:0 .5em;background:linear-gradient(to right,{colors})'></span>"
        )
        beyond = float(np.abs(self.relevance).max(initial=0.0)) > self.limit * (1 + 1e-9)
        clipped = " (more is clipped)" if beyond else ""
        return f"{low} {short(-self.limit)}{bar}{short(self.limit, plus=True)} {high}{clipped}"

    def draw(
        self, ax: Axes | None = None, *, figsize: Size | None = None, dpi: float | None = None,
        columns: int | None = None, points: float = 11.0,
    ) -> Axes:  # fmt: skip
        """The text as a matplotlib picture: lines of at most so many letters in a fixed-width font, and a colour bar.

        Without ``columns`` a line has as many letters as fit into ``ax`` or ``figsize``, and 72 in a figure of its own.

        >>> ax = text([0.7, -0.2], ["▁The", "▁cat"]).draw()
        >>> [t.get_text() for t in ax.texts]
        ['The', 'cat']
        """
        if columns is None:
            room = figsize[0] if figsize is not None else inches(ax)[0] if ax is not None else None
            columns = 72 if room is None else max(1, int((room - 0.4) / (LETTER * points / 72)))
        if columns < 1:
            raise QuestionError("columns are not positive", got=repr(columns), where="nrm.plot.text")
        rows = _lines(self.pieces, columns)
        width, height = _extent(rows)
        ax = place("nrm.plot.text", ax, _page(width, height, points), figsize, dpi)
        self._draw_words(ax, rows, points)
        ax.set(xlim=(-0.5, width + 0.5), ylim=(height - 0.4, -0.6))
        if self.title:
            ax.set_title(self.title, parse_math=False, color=INK, loc="left")
        bar = lay_bar(
            ax.figure, self.limit, self.labels, ax=ax, fraction=0.08, pad=0.06, aspect=24, shrink=0.5
        )  # fmt: skip
        if self.notes:
            bar.set_label("\n".join(self.notes), size=NOTE_POINTS, color=INK)
        return ax

    def draw_alone(self, ax: Axes, columns: int, points: float, begin: int = 0) -> int:
        """The words without a colour bar, in axes that are so many letters wide, from a line on; returns the next."""
        rows = _lines(self.pieces, columns)
        self._draw_words(ax, [(y + begin, x, piece) for y, x, piece in rows], points)
        end = begin + _extent(rows)[1]
        ax.set(xlim=(-0.5, columns + 0.5), ylim=(end - 0.4, -0.6))
        return end

    def count_lines(self, columns: int) -> int:
        """How many lines the text has, if they have at most so many letters."""
        return _extent(_lines(self.pieces, columns))[1]

    def _draw_words(self, ax: Axes, rows: Sequence[tuple[int, int, ReadToken]], points: float) -> None:
        with extra("viz", "nrm.plot.text"):
            from matplotlib.patches import Rectangle
        for (y, x, piece), r in zip(rows, self.relevance, strict=True):
            level = float(r) / self.limit
            box = Rectangle((x - 0.08, y - 0.38), len(piece.text) + 0.16, 0.8, facecolor=color_at(level), linewidth=0)
            ax.add_patch(box)
            ax.text(
                x + len(piece.text) / 2, y, piece.text, family="monospace", fontsize=points, color=_ink(level),
                ha="center", va="center", parse_math=False,
            )  # fmt: skip
        ax.set_axis_off()

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """The text as a page (``.html``), or as a picture (``.png``, ``.svg``, ``.pdf`` ...).

        ``options`` are those of :meth:`draw`.
        """
        if Path(path).suffix.lower() not in (".html", ".htm"):
            draw_and_save(path, self.draw, **options)
            return
        write_text(path, f"<!doctype html><meta charset=utf-8>{self.html}\n")


def lay_bar(figure: Any, limit: float, labels: tuple[str, str], **where: Any) -> Any:
    """A colour bar that lies below what it is for, with a word at each end."""
    with extra("viz", "nrm.plot.text"):
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize
    bar = figure.colorbar(ScalarMappable(Normalize(-limit, limit), diverging()), orientation="horizontal", **where)
    low, high = f"{short(-limit)}\n{labels[0]}", f"{short(limit, plus=True)}\n{labels[1]}"
    bar.set_ticks([-limit, 0.0, limit], labels=[low, "0", high])
    bar.ax.tick_params(length=0, labelsize="small", labelcolor=INK)
    bar.outline.set(edgecolor=FRAME, linewidth=0.6)
    return bar


def _ink(level: float) -> str:
    """Letters that can be read on a colour."""
    return "#ffffff" if abs(level) > 0.6 else INK


def _lines(pieces: Sequence[ReadToken], columns: int) -> list[tuple[int, int, ReadToken]]:
    """Row and column of every piece; a word moves to the next line as a whole, unless a line is too short for it."""
    placed: list[tuple[int, int, ReadToken]] = []
    y = x = 0
    for i, piece in enumerate(pieces):
        word = len(piece.text)
        for more in pieces[i + 1 :]:
            if more.space:
                break
            word += len(more.text)
        gap = 1 if piece.space and x else 0
        starts = piece.space or i == 0
        if x and ((starts and x + gap + word > columns) or x + gap + len(piece.text) > columns):
            y, x, gap = y + 1, 0, 0
        placed.append((y, x + gap, piece))
        x += gap + len(piece.text)
        if piece.ends:
            y, x = y + 1, 0
    return placed


def _extent(rows: Sequence[tuple[int, int, ReadToken]]) -> tuple[int, int]:
    """How many letters and lines placed words take."""
    wide = max((x + len(piece.text) for _, x, piece in rows), default=1)
    return wide, 1 + max((y for y, _, _ in rows), default=0)


def _page(width: int, height: int, points: float) -> Size:
    """The size of a figure for so many letters and lines, in inches."""
    letter, line = LETTER * points / 72, 1.9 * points / 72
    return max(width * letter, 3.0) + 0.4, height * line + 1.1
