"""What the measured limits and ways are called, for reports that need neither them nor torch. PURE."""

import re

READ = "preadv alone"
DIRECT = "O_DIRECT alone"
COPY = "copy from page-locked memory alone"
THREADED = re.compile(rf"({READ}|{DIRECT}), (\d+) threads")

OURS = "loader"
"""How the names of our own ways begin."""
INTO = "loader.load into parameters"
"""Our way into memory that is there already: what a limit that allocates nothing is compared with."""
TRIED = re.compile(rf"{INTO}, (\d+) threads of (\d+) MiB")
"""The same with other numbers than its own."""
LOAD_FILE = "loader.torch.load_file"


def tried(threads: int, mebibytes: int) -> str:
    """Our way into memory that is there already, with so many threads that read so much at once."""
    return f"{INTO}, {threads} threads of {mebibytes} MiB"


def is_limit(name: str) -> bool:
    """Whether this names a limit."""
    return name == COPY or THREADED.fullmatch(name) is not None


def is_read(name: str) -> bool:
    """Whether this names a limit of reading through the page cache."""
    return is_limit(name) and name.startswith(READ)


def is_direct_read(name: str) -> bool:
    """Whether this names a limit of reading past the page cache."""
    return is_limit(name) and name.startswith(DIRECT)


def is_peer(name: str) -> bool:
    """Whether this names a peer's way."""
    return not is_limit(name) and not name.startswith(OURS)
