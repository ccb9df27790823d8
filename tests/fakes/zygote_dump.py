"""A zygote whose forks tell how they live, if that is what they are asked to do: `python zygote_dump.py SOCKET`.

`python zygote_dump.py dump` tells it of a process that was started in the ordinary way.
"""

import ctypes
import json
import os
import random
import resource
import signal
import sys
from pathlib import Path

from warmpool.reference import zygote
from warmpool.reference.cli import main


def dump() -> None:
    """Print all that a process has from the one that started it."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    umask = os.umask(0)
    os.umask(umask)
    files = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            files[link.name] = str(link.readlink())
        except OSError:
            continue  # the one that lists them
    told = {
        "arguments": sys.argv[1:],
        "environment": dict(sorted(os.environ.items())),
        "variableInC": (libc.getenv(b"MARK") or b"").decode(),
        "directory": str(Path.cwd()),
        "umask": umask,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "limits": {
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        },
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "handlers": {str(number): str(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "leadsSession": os.getsid(0) == os.getpid(),
        "files": {number: files[number] for number in sorted(files) if "socket:" not in files[number]},
    }
    numpy = sys.modules.get("numpy")
    chance = [random.random(), None if numpy is None else float(numpy.random.random())]
    sys.stdout.write(json.dumps({"same": told, "chance": chance}) + "\n")


if sys.argv[1:2] == ["dump"]:
    dump()
else:
    asked = zygote.serve(Path(sys.argv[1]))
    if asked is not None:
        sys.argv[1:] = asked.arguments
        if asked.arguments[0] == "dump":
            dump()
        else:
            main(asked.origin)
