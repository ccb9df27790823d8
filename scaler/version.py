"""Which Emberpool this is."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("emberpool")
except PackageNotFoundError:  # run from a source tree that nobody installed
    VERSION = "0+source"
