"""A server with OpenAI's completions and nothing else: no pause, no metrics, no health route, as many are."""

from dataclasses import dataclass

from tests.fakes.engine_server import FakeEngine, run


@dataclass
class FakeGeneric(FakeEngine):
    """One such server."""


if __name__ == "__main__":
    run(FakeGeneric)
