from pathlib import Path

import pytest

from scaler.policy.compile import PolicySet, load_policies
from scaler.policy.witnesses import lacks_witness
from warmpool.seats import PolicyName

SET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: own}
spec: {maxSeats: OWN}
---
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 4, spare: {min: SPARES}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: own, targetInFlight: 4}, {name: spares, targetInFlight: 4}]
  engine: {type: VLLM, proof: {source: SOURCE}}
  serving: {min: FLOOR}
"""


def policies(folder: Path, **words: object) -> PolicySet:
    text = SET
    for word, value in words.items():
        text = text.replace(word, str(value))
    (folder / "set.yaml").write_text(text, "utf-8")
    return load_policies([folder])


@pytest.mark.parametrize(
    ("own", "spares", "floor", "lacks"),
    [
        pytest.param(2, 0, 1, True, id="one serves"),
        pytest.param(2, 1, 1, False, id="one serves beside a spare"),
        pytest.param(2, 0, 2, False, id="two serve on one fleet"),
        pytest.param(1, 0, 2, False, id="two serve on two fleets, for the first has one seat"),
        pytest.param(2, 2, 0, False, id="two spares"),
    ],
)
def test_a_witness_is_a_second_resident_at_rest(
    tmp_path: Path, own: int, spares: int, floor: int, *, lacks: bool
) -> None:
    found = policies(tmp_path, OWN=own, SPARES=spares, FLOOR=floor, SOURCE="Agreement")
    assert lacks_witness(found, PolicyName("chat")) is lacks


def test_recorded_answers_need_no_witness(tmp_path: Path) -> None:
    found = policies(tmp_path, OWN=1, SPARES=0, FLOOR=0, SOURCE="Record")
    assert not lacks_witness(found, PolicyName("chat"))
