"""What a census has found, as a page of the docs: totals of every list, and every model that was not answered."""

from __future__ import annotations

import importlib.metadata
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

VERDICTS = ("answered", "refused", "not accepted", "wrong", "failed", "too large", "not made")
HEAD = """# Census

Does the library answer for the models that people have? `make census` makes a small random model of every kind that
the installed packages know, and judges each in a process of its own: is the captured value the model's own, is the mass
1 at the input cut and at five others, does the certificate accept, and the same for a contrast against other inputs.
The figures below are of {versions}.

- **answered**: every number holds and the certificate accepts. **refused**: an error that names the op or the reason.
  **wrong**: a number is off and the certificate accepts all the same. **failed**: an error that is not ours.
- **too large** for 2 GB or a minute, and **not made** (the census could not make a small model, or a package that it
  needs is missing), say nothing about relevance. Shares are of those that were made and fit.
- A contrast is against random inputs, or near ones where the model chooses other things for those: experts, boxes,
  places of a list. Where it does so for the near ones as well, no step is linear in the difference: it is refused.
- Cost counts forward passes of one thread: capture, the sweep and the certificate's light check, on models so small
  that most of it is Python; the [performance page](performance.md) has models of real size.

"""


def page(rows: Sequence[Row]) -> str:
    """The page, from the findings about all cases."""
    lists = list(dict.fromkeys(row["of"] for row in rows))
    parts = [HEAD.format(versions=_versions(lists)), _totals(lists, rows)]
    for verdict in ("wrong", "failed", "not accepted", "refused"):
        parts.append(_named(f"## {verdict.capitalize()}", [r for r in rows if r["verdict"] == verdict], "words"))
    left = [r for r in rows if r["verdict"] == "answered" and r["contrast_verdict"] != "answered"]
    parts.append(_named("## Answered, but no contrast", left, "contrast_words"))
    for verdict in ("too large", "not made"):
        names = [f"{r['name']} ({r['of']})" for r in rows if r["verdict"] == verdict]
        parts.append(f"## {verdict.capitalize()}\n\n{', '.join(names) or 'None.'}\n")
    return "\n".join(parts)


def _versions(lists: Iterable[str]) -> str:
    packages = dict.fromkeys(name.partition(".")[0] for name in ("torch", *lists))
    return ", ".join(f"{name} {importlib.metadata.version(name).partition('+')[0]}" for name in packages)


def _totals(lists: Sequence[str], rows: Sequence[Row]) -> str:
    """A line per list: how many of each verdict, the share that is answered, contrasts, and the median cost."""
    lines = [
        "| list | " + " | ".join(VERDICTS) + " | answered | contrasts | median cost |",
        "|---|" + "---|" * (len(VERDICTS) + 3),
    ]
    for name in lists:
        mine = [row for row in rows if row["of"] == name]
        counts = {verdict: sum(row["verdict"] == verdict for row in mine) for verdict in VERDICTS}
        judged = len(mine) - counts["too large"] - counts["not made"]
        contrasts = sum(row["contrast_verdict"] == "answered" for row in mine)
        costs = [row["cost"] for row in mine if row["verdict"] == "answered" and row["cost"] is not None]
        share = [f"{100 * n / max(judged, 1):.0f} %" for n in (counts["answered"], contrasts)]
        cost = f"{statistics.median(costs):.0f}" if costs else ""
        lines.append(f"| {name} | " + " | ".join(map(str, (*counts.values(), *share, cost))) + " |")
    return "\n".join(lines) + "\n"


def _named(title: str, rows: Sequence[Row], words: str) -> str:
    """Every model of some findings, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        said = [part.strip() for part in (row.get(words) or row.get("words") or "").split(";")]
        reason = said[2].partition(",")[0] if said[0].endswith("cannot be trusted") and len(said) > 2 else said[0]
        reasons.setdefault(reason, []).append(f"{row['name']} ({row['of']})")
    lines = [f"- {_plain(reason)}: {', '.join(names)}" for reason, names in reasons.items()]
    return f"{title}\n\n" + ("\n".join(lines) if lines else "None.") + "\n"


def _plain(text: str) -> str:
    """Words without what a page would read as marks."""
    return " ".join(text.replace("<", "").replace(">", "").replace("|", "").split())[:200]
