"""``python -m nrm`` is the command line."""

import sys

from nrm.cli import main

if __name__ == "__main__":
    sys.exit(main())
