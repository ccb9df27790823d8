"""How long a large policy set takes to read and check.

    python -m scaler.policy.bench.reading --policies 500

Each model has a file with a fleet of its own and its policy, which names shared spares behind it; fields are written
out as people write them. Everything runs on one core. The first figure is what a person or a pipeline waits for: a
fresh process, from its start to its exit code.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scaler.policy.reading import PolicyFiles

_POLICIES_A_SHARED_FLEET = 25

_SHARED = """\
# One fleet of spares behind {count} models.
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata:
  name: {name}
  namespace: serving
spec:
  maxSeats: 40
  seat: {{gpus: 1, kvWhenPaused: Release}}
  spare:
    mode: Auto
    min: 2
    max: 8
    quantile: 99
    replenish: {{maxConcurrent: 4, maxPerNode: 1, perMinute: 12}}
"""

_MODEL = """\
# Model {number} of team {team}.
apiVersion: emberpool.dev/v1alpha1
kind: Fleet # what there is
metadata:
  name: {name}
  namespace: serving
spec:
  target: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}
  mode: Enforce
  seat:
    gpus: 1
    kvWhenPaused: Release # neighbours on a seat share its KV memory
  spare:
    mode: Fixed
    min: {spare}
    replenish: {{maxConcurrent: 4, perMinute: 12}}
  maxSeats: 20
  scaleDown:
    stabilizationWindowSeconds: 300
    policies:
      - {{type: Percent, value: 50, periodSeconds: 60}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy # what one model needs
metadata:
  name: {name}
  namespace: serving
spec:
  fleets: # in order: own seats first, shared spares as the bridge
    - {{name: {name}, targetInFlight: 32}}
    - {{name: {shared}, targetInFlight: 24}}
  models: [{name}, {name}-chat]
  engine:
    type: VLLM
    port: {port}
    args: [--max-model-len, "8192", --gpu-memory-utilization, "0.3"]
  priority: {priority}
  objectives:
    ttft: {{seconds: 1, percent: 99}}
  serving: {{min: 1, max: 40, queueDrainSeconds: 2}}
  burst: {{thresholdPercent: 150, windowSeconds: 6, stableWindowSeconds: 60, demoteAfterSeconds: 60}}
  signals:
    - {{name: gateway, type: Pushed}}
    - {{name: engine, type: EngineMetrics, intervalMilliseconds: 250}}
    - name: waiting
      type: Prometheus
      query: 'sum(vllm:num_requests_waiting{{model_name="{name}"}})'
      measures: QueueDepth
      intervalSeconds: 15
  schedules:
    - {{name: day, timeZone: Europe/Berlin, start: "0 8 * * 1-5", end: "0 18 * * 1-5", minServing: 2}}
  fallback: {{failureThreshold: 3, behavior: CurrentReplicasIfHigher, replicas: 4}}
"""


def write_policies(directory: Path, count: int) -> None:
    """Write a file for each of `count` models, and one for each shared fleet."""
    for first in range(0, count, _POLICIES_A_SHARED_FLEET):
        name = _shared(first)
        (directory / f"{name}.yaml").write_text(_SHARED.format(name=name, count=count), "utf-8")
    for number in range(count):
        (directory / f"{_name(number)}.yaml").write_text(model_text(number), "utf-8")


def model_text(number: int, *, priority: int = 0) -> str:
    """Return the file of one model."""
    return _MODEL.format(
        number=number,
        port=8001 + number,
        team=number % 20,
        name=_name(number),
        shared=_shared(number),
        spare=number % 3,
        priority=priority,
    )


def _name(number: int) -> str:
    return f"model-{number:04d}"


def _shared(number: int) -> str:
    return f"spares-{number // _POLICIES_A_SHARED_FLEET:02d}"


def _took(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _validate(directory: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "scaler", "policy", "validate", str(directory)],
        check=True,
        capture_output=True,
    )


def main() -> int:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policies", type=int, default=500)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="policies-") as name:
        directory = Path(name)
        write_policies(directory, options.policies)
        size = sum(file.stat().st_size for file in directory.iterdir())
        sys.stdout.write(
            f"{options.policies} policies, {size / 1e6:.1f} MB; load average {os.getloadavg()[0]:.1f}\n"
        )
        _say("validate, a fresh process", _took(lambda: _validate(directory)))
        files = PolicyFiles([directory])
        _say("read the first time", _took(files.read))
        _say("has anything changed?", _took(files.signature))
        _say("read again, nothing changed", _took(files.read))
        (directory / f"{_name(0)}.yaml").write_text(model_text(0, priority=1), "utf-8")
        _say("read again, one file changed", _took(files.read))
    return 0


def _say(what: str, seconds: float) -> None:
    sys.stdout.write(f"{what}: {seconds * 1e3:,.0f} ms\n")


if __name__ == "__main__":
    sys.exit(main())
