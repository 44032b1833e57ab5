"""The command without a model: version."""

from nrm.cli.asked import VersionCommand
from nrm.cli.output import Terminal, versions


def version(asked: VersionCommand) -> int:
    """Says the version."""
    terminal = Terminal(asked.json)
    terminal.say(versions()["nrm"])
    terminal.finish("version")
    return 0
