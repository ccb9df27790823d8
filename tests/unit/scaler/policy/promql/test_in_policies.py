"""A query that is none is a fault of its policy, at its place."""

import pytest

from scaler.errors import PolicyError
from scaler.policy.compile import compile_set
from scaler.policy.source import parse_documents

POLICY = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: own}
spec: {maxSeats: 1}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: own, targetInFlight: 8}]
  signals:
    - name: late
      type: Prometheus
      query: QUERY
      measures: Requests
"""


def test_it_is_told_with_its_character_and_a_mend() -> None:
    with pytest.raises(PolicyError) as caught:
        compile_set(parse_documents(POLICY.replace("QUERY", "sum(rate(x[5m])"), "f.yaml"))
    (fault,) = caught.value.faults
    assert (fault.line, fault.path) == (14, "spec.signals[0].query")
    assert fault.message == "is not PromQL: the ( at character 4 is never closed"
    assert fault.hint == "add the )"


def test_what_only_a_server_can_know_is_left_to_it() -> None:
    compile_set(parse_documents(POLICY.replace("QUERY", "no_such_function(x)"), "f.yaml"))
