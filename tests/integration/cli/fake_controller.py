"""A controller's HTTP for the command line's tests: canned answers over a real socket.

What is posted is kept; its answer is said for the key `POST /path`.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeController(ThreadingHTTPServer):
    """Answers each path with a status and a body; what isn't there is 404."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.ordered: list[tuple[Any, dict[str, str]]] = []
        self.answered = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def say(self, path: str, body: Any, status: int = 200) -> None:
        self.answers[path] = (status, json.dumps(body).encode())

    def wait_until_asked(self, times: int, seconds: float = 20.0) -> None:
        with self.answered:
            assert self.answered.wait_for(lambda: len(self.asked) >= times, timeout=seconds)


class _Handler(BaseHTTPRequestHandler):
    server: FakeController

    def do_GET(self) -> None:
        self._answer(self.path)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.ordered.append((json.loads(body), dict(self.headers)))
        self._answer(f"POST {self.path}")

    def _answer(self, key: str) -> None:
        status, body = self.server.answers.get(key, (404, b"nothing here"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        with self.server.answered:
            self.server.asked.append(self.path)
            self.server.answered.notify_all()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@contextmanager
def serving(controller: FakeController) -> Iterator[FakeController]:
    """Serve until the block ends; then the port is free again."""
    thread = threading.Thread(target=controller.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield controller
    finally:
        controller.shutdown()
        thread.join()
        controller.server_close()
