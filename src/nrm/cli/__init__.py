"""The command line: ``nrm``, or ``python -m nrm``. It needs the extra ``cli``.

What commands are made of can be called from Python as well: :func:`load_model` and :func:`read_inputs`.
"""

from nrm.cli.app import main
from nrm.cli.inputs import read_inputs
from nrm.cli.models import load_model

__all__ = ["load_model", "main", "read_inputs"]
