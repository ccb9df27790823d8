"""Which reference engine this is."""

from typing import Final

VERSION: Final = "0.1.0"
"""Raised when it computes something else: what an older one was recorded to answer is then not compared with it."""
