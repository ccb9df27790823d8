"""Floods a controller from a process of its own, over many connections, for as long as it is told.

    python flood.py HOST PORT TOKEN CONNECTIONS SECONDS BYTES

Each connection sends samples one after the other, as large as may be, as fast as they are answered.
"""

import asyncio
import json
import sys
import time

HOST, PORT, TOKEN, CONNECTIONS, SECONDS, BYTES = sys.argv[1:]


def request(name: str, sequence: int) -> bytes:
    body: dict[str, object] = {
        "instance": name,
        "sequence": sequence,
        "at": time.time(),
        "policies": {"chat": {"backlog": sequence}},
        "padding": "",
    }
    body["padding"] = "x" * (int(BYTES) - len(json.dumps(body)))
    sample = json.dumps(body)
    head = f"POST /v1/signals HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    return f"{head}Content-Length: {len(sample)}\r\n\r\n{sample}".encode()


async def lane(number: int, until: float) -> None:
    sequence = 0
    while time.monotonic() < until:
        reader, writer = await asyncio.open_connection(HOST, int(PORT))
        try:
            while time.monotonic() < until:
                sequence += 1
                writer.write(request(f"flood-{number}", sequence))
                await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            continue  # it hung up
        finally:
            writer.close()


async def main() -> None:
    until = time.monotonic() + float(SECONDS)
    print("begins", flush=True)  # noqa: T201 - for the test
    await asyncio.gather(*(lane(number, until) for number in range(int(CONNECTIONS))))


asyncio.run(main())
