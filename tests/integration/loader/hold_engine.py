"""An engine as far as attaching goes: `python -m tests.integration.loader.hold_engine SOCKET MODEL DEVICE`.

It says how long attaching took, and then answers the words on its standard input: `digest` with every tensor's digest, `write` by
writing to a tensor, which mustn't be possible.
"""

import json
import sys
import time
from pathlib import Path

import loader
from loader.cuda.driver import Driver
from loader.cuda.port import Device
from loader.digest import digest_tensors
from loader.stage.client import HeldCopy, StageClient
from tests.unit.loader.stage_device import MemoryFileDevice


def digests_from(answer: str) -> dict[str, str]:
    """The digests in an answer to `digest`."""
    found: dict[str, str] = json.loads(answer)
    return found


def main() -> None:
    socket_path, model, name = sys.argv[1:]
    device: Device = Driver(int(name)) if name else MemoryFileDevice()
    checkpoint = loader.open_checkpoint(model)
    begun = time.perf_counter()
    copy = HeldCopy(checkpoint, device, StageClient(Path(socket_path)))
    _say(f"attached {time.perf_counter() - begun}")
    tensors = copy.tensors()
    for line in sys.stdin:
        match line.strip():
            case "digest":
                _say(f"digest {json.dumps(digest_tensors(tensors))}")
            case "write":
                next(iter(tensors.values())).zero_()
                device.wait()
                _say("write done")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
