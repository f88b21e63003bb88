"""`python -m fenchel` is the `fenchel` command."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
