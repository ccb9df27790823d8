"""Small policy sets for the tests of reloading."""

from collections.abc import Mapping
from pathlib import Path

from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.document import parse_documents
from scaler.policy.reading import PolicyFiles, Reading

FLEET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: NAME}
spec: {maxSeats: 4, scaleDown: {stabilizationWindowSeconds: 10}}
"""
POLICY = """\
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: NAME}
spec:
  fleets: [{name: spares, targetInFlight: 4}]
  schedules: [{name: day, start: 0 8 * * *, end: 0 18 * * *, minServing: 1}]
"""


def fleet(name: str = "spares", **replaced: str) -> str:
    return _replaced(FLEET.replace("NAME", name), replaced)


def policy(name: str, **replaced: str) -> str:
    return _replaced(POLICY.replace("NAME", name), replaced)


def _replaced(text: str, replaced: Mapping[str, str]) -> str:
    """Give a key another value: it stands at the end of its line, or before a comma or brace."""
    for key, value in replaced.items():
        before = text
        head, _, tail = text.partition(f"{key}: ")
        rest = tail[min(at for sign in ",}\n" if (at := tail.find(sign)) >= 0) :]
        text = f"{head}{key}: {value}{rest}"
        assert text != before, key
    return text


def compiled(*documents: str) -> PolicySet:
    return compile_set(parse_documents("---\n".join(documents), "f.yaml"))


def reading(directory: Path, *documents: str) -> Reading:
    file = directory / "read.yaml"
    file.write_text("---\n".join(documents), "utf-8")
    return PolicyFiles([file]).read()
