"""The door of the command line: runs a command, and says what went wrong in one form."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Sequence

from nrm.cli.output import COMMAND, as_text, complaint, document
from nrm.errors import CaptureError, InputError, NrmError, QuestionError, ResultFileError, RuleError, readable
from nrm.extras import extra

FAILED, BAD, STOPPED = 1, 2, 130
BAD_INPUT = (InputError, QuestionError, CaptureError, RuleError, ResultFileError)
"""What a command refuses because of what it was given; nothing has been written then."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code is 0 if all went well, 1 if something failed, 2 for input that makes no sense."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    COMMAND.set(readable(f"python -m nrm {shlex.join(given)}"))
    try:
        with extra("cli", "the command line"):
            room = importlib.import_module("nrm.cli.commands")
        found = room.make_command()(args=given, prog_name="nrm", standalone_mode=False)
        return int(found or 0)
    except NrmError as error:
        return _complain(error, given)
    except OSError as error:  # a full disk, a folder that may not be written to
        return _complain(NrmError("the system refuses", got=str(error)), given)
    except Exception as error:  # what the parser has to say, in its own words
        if type(error).__name__ == "Abort":
            print(str(error.__cause__ or "") or "stopped", file=sys.stderr)
            return STOPPED
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", BAD))


WRITTEN = {
    "max_errors=": "--max-errors ",
    "bad='skip'": "--skip",
    "nrm.measure(model, x, against=reference)": "--against INPUT",
    "against='": "--against '",
    "against=OTHER": "--against OTHER",
    "R.layers lists": "nrm layers lists",
    "R.find('*pattern*')": "nrm layers --find PATTERN",
}
"""What hints say in Python, and how it is written here."""


def _complain(error: NrmError, given: Sequence[str]) -> int:
    for python, here in WRITTEN.items():
        error.hint = error.hint and error.hint.replace(python, here)
    print(error, file=sys.stderr)
    if "--json" in given:
        print(as_text(document(given[0], error=complaint(error))))
    return BAD if isinstance(error, BAD_INPUT) else FAILED
