"""Let ``python -m bunqueue`` be the command line."""

import sys

from bunqueue.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
