"""`python -m warmpool.reference`."""

from warmpool.reference.cli import main

main()
