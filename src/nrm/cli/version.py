"""The command without a model: version."""

from nrm.cli.asked import Version
from nrm.cli.output import Terminal, versions


def version(asked: Version) -> int:
    """Says the version."""
    terminal = Terminal(asked.json)
    terminal.say(versions()["nrm"])
    terminal.finish("version")
    return 0
