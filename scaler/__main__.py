"""`python -m scaler`: the `emberpool` command."""

import sys

from scaler.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
