"""``python -m nrm.testing.census``: runs the census, or a part of it; ``--page`` writes what was found as a page."""

from __future__ import annotations

import argparse
import fnmatch
from pathlib import Path

from nrm.files import write_text
from nrm.testing.census import LISTS, cases_of, read, run
from nrm.testing.census.judge import CensusRow
from nrm.testing.census.page import page


def main() -> None:
    """Reads the command line, runs, and says what was found."""
    given = _read()
    if given.page is not None:
        write_text(given.page, page(read(given.out)))
        return
    chosen = [case for name in given.lists for case in cases_of(name) if fnmatch.fnmatch(case.name, given.only)]
    run(
        chosen[:: given.every], given.out, limit=given.limit, room=int(given.room * 2**30), told=_say,
        again=lambda row: bool({row["verdict"], row["contrast_verdict"]} & set(given.again)),
    )  # fmt: skip


def _read() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nrm.testing.census", description=__doc__)
    parser.add_argument("lists", nargs="*", default=list(LISTS), help=f"which of {', '.join(LISTS)}")
    parser.add_argument("--only", default="*", help="a pattern that names of cases must match")
    parser.add_argument("--every", type=int, default=1, help="every so many cases, for a sample")
    parser.add_argument("--again", nargs="*", default=[], help="verdicts that are found out anew, such as refused")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per case")
    parser.add_argument("--room", type=float, default=2.0, help="gigabytes per case")
    parser.add_argument("--page", type=Path, help="write a page of what the file of findings has, and run nothing")
    parser.add_argument("--out", type=Path, default=Path("out/census.jsonl"), help="the file of findings")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    return given


def _say(found: CensusRow) -> None:
    words = (found.words or found.contrast_words)[:150]
    print(f"{found.of:<14} {found.name:<34} {found.verdict:<13} {found.contrast_verdict:<13} {words}", flush=True)


if __name__ == "__main__":
    main()
