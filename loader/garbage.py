"""No collection of garbage while many objects are made that all stay.

A header of ten thousand tensors makes some fifty thousand objects, and the collector looks through everything that a process has, again
and again, for cycles that aren't there: more than half of the time of opening such a checkpoint, and more beside torch.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_LOCK = Lock()
_held = 0  # blocks that are open in this process
_was_enabled = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector still until the end of the block; for work that is short and makes no cycles.

    Blocks of several threads may overlap: the last to end starts it again, if it was on before the first.
    """
    global _held, _was_enabled  # noqa: PLW0603 - the collector is the process's own
    with _LOCK:
        if not _held:
            _was_enabled = gc.isenabled()
            gc.disable()
        _held += 1
    try:
        yield
    finally:
        with _LOCK:
            _held -= 1
            if not _held and _was_enabled:
                gc.enable()
