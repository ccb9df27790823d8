"""The hash by which an agent knows an engine again."""

import json

from hypothesis import given
from hypothesis import strategies as st

from warmpool.launcher import Spec

TEXT = st.text(max_size=20)
SPECS = st.builds(
    Spec,
    command=st.lists(TEXT, min_size=1, max_size=4).map(tuple),
    environment=st.dictionaries(TEXT, st.none() | TEXT, max_size=4),
    working_directory=TEXT,
    niceness=st.none() | st.integers(-20, 19),
)


@given(SPECS)
def test_it_does_not_depend_on_the_order_of_the_environment(spec: Spec) -> None:
    turned = Spec(
        command=spec.command,
        environment=dict(reversed(spec.environment.items())),
        working_directory=spec.working_directory,
        niceness=spec.niceness,
    )
    assert turned.digest() == spec.digest()


@given(SPECS, SPECS)
def test_it_tells_specs_apart(one: Spec, other: Spec) -> None:
    assert (one.digest() == other.digest()) == (one == other)


@given(SPECS)
def test_it_survives_the_way_over_the_socket(spec: Spec) -> None:
    fields = json.loads(json.dumps(spec.to_json()))
    there = Spec(
        command=tuple(fields["command"]),
        environment=fields["environment"],
        working_directory=fields["workingDirectory"],
        niceness=fields["niceness"],
    )
    assert there.digest() == spec.digest()


def test_it_stays_the_same_across_versions() -> None:
    """An agent of tomorrow takes up what a launcher of today has started."""
    spec = Spec(command=("vllm", "serve"), environment={"A": "b", "C": None})
    assert spec.digest() == "sha256:d1591218eacecb9b97968c3b48e84e73361c4d256520dc685b0c05404d63fdde"
