"""The command line: ``nrm``, or ``python -m nrm``. It needs the extra ``cli``."""

from nrm.cli.app import main

__all__ = ["main"]
