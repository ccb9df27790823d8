"""The annotation that says which residents a seat has: what is read, what is refused and where, and that it comes back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.errors import PolicyError
from scaler.policy.document import dotted
from scaler.policy.residents import (
    RESIDENTS_ANNOTATION,
    ResidentsInvalid,
    SeatResident,
    dump_residents,
    parse_residents,
    residents_at,
)
from scaler.policy.source import parse_documents

CHAT = '{"policy":"chat","command":["vllm","serve"],"port":8001,"enginePort":9001,"pausedMiB":16800,"kvMiB":40960}'
CODE = '{"policy":"code","container":"code","port":8002}'


def test_residents_are_read_in_their_order() -> None:
    chat, code = parse_residents(f"[{CHAT},{CODE}]")
    assert chat == SeatResident(
        policy="chat",
        command=("vllm", "serve"),
        port=8001,
        engine_port=9001,
        paused_mib=16_800,
        kv_mib=40_960,
    )
    assert code == SeatResident(policy="code", container="code", port=8002)


def test_what_is_written_is_compact_and_leaves_out_what_is_unknown() -> None:
    assert dump_residents(parse_residents(f" [ {CHAT}, {CODE} ] ")) == f"[{CHAT},{CODE}]"


@pytest.mark.parametrize(
    ("written", "faults"),
    [
        pytest.param("", [": is not JSON: Expecting value at character 1"], id="empty"),
        pytest.param("[1", [": is not JSON: Expecting ',' delimiter at character 3"], id="cut"),
        pytest.param("{}", [": must be a JSON list of residents, is an empty mapping"], id="no-list"),
        pytest.param("[]", [": must be a list with at least one entry, is an empty list"], id="empty-list"),
        pytest.param("[1]", ["[0]: must be a mapping, is 1"], id="no-mapping"),
        pytest.param(
            '[{"port":1,"port":2}]',
            [': is not JSON that can be read: the key "port" is there twice'],
            id="key-twice",
        ),
        pytest.param("[" * 100_000, [": is not JSON that can be read: "], id="deep"),
        pytest.param(
            CODE.join("[]").replace("8002", '"8002"'),
            ['[0].port: must be an integer from 1 to 65535, is "8002"'],
            id="text-for-a-number",
        ),
        pytest.param(
            CODE.join("[]").replace("}", ',"pausedMb":1}'),
            ["[0].pausedMb: is not a known key"],
            id="unknown-key",
        ),
        pytest.param(
            '[{"policy":"chat","port":1}]', ["[0]: has neither container nor command"], id="no-way-to-start"
        ),
        pytest.param(
            CODE.join("[]").replace("}", ',"command":["x"]}'),
            ["[0].command: container is given as well"],
            id="two-ways",
        ),
        pytest.param(
            CHAT.join("[]").replace("9001", "8001"),
            ["[0].enginePort: is the resident's own port 8001"],
            id="guard-and-engine-on-one-port",
        ),
        pytest.param(
            f"[{CODE},{CODE}]",
            ["[1].policy: code has a resident already, [0]", "[1].port: port 8002"],
            id="twice",
        ),
        pytest.param(
            f"[{CHAT},{CODE}]".replace("8002", "9001"),
            ["[1].port: port 9001 is [0]'s already"],
            id="port-taken",
        ),
    ],
)
def test_what_can_t_be_used_is_said_with_its_place_in_the_list(written: str, faults: list[str]) -> None:
    with pytest.raises(ResidentsInvalid) as raised:
        parse_residents(written)
    found = [f"{dotted(fault.path)}: {fault.message}" for fault in raised.value.faults]
    assert len(found) == len(faults)
    assert all(one.startswith(start) for one, start in zip(found, faults, strict=True)), found
    assert all(fault.hint for fault in raised.value.faults)


def test_a_fault_in_a_manifest_has_the_annotation_s_place() -> None:
    (document,) = parse_documents(
        f"metadata:\n  annotations:\n    {RESIDENTS_ANNOTATION}: '[1]'\n", "pod.yaml"
    )
    with pytest.raises(PolicyError) as raised:
        residents_at(document, ("metadata", "annotations", RESIDENTS_ANNOTATION))
    (fault,) = raised.value.faults
    assert (fault.file, fault.line, fault.path) == (
        "pod.yaml",
        3,
        "metadata.annotations.emberpool.dev/residents[0]",
    )


def test_an_annotation_that_is_no_text_is_refused() -> None:
    (document,) = parse_documents(f"metadata:\n  annotations:\n    {RESIDENTS_ANNOTATION}: [1]\n", "pod.yaml")
    with pytest.raises(PolicyError, match="must be a text that holds JSON, is a list"):
        residents_at(document, ("metadata", "annotations", RESIDENTS_ANNOTATION))


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
MIB = st.none() | st.integers(1, 1 << 26)


@given(
    st.lists(
        st.builds(
            lambda command, paused, kv: {"command": command, "paused_mib": paused, "kv_mib": kv},
            st.lists(WORDS, min_size=1, max_size=4).map(tuple),
            MIB,
            MIB,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_written_is_read_back(listed: list[dict[str, object]]) -> None:
    residents = tuple(
        SeatResident.model_validate({"policy": f"p{index}", "port": 8000 + index, **each}, by_name=True)
        for index, each in enumerate(listed)
    )
    assert parse_residents(dump_residents(residents)) == residents


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["policy", "port", "command", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(JSON)
def test_json_that_is_no_list_of_residents_is_refused(tree: object) -> None:
    with pytest.raises(ResidentsInvalid):
        parse_residents(json.dumps([tree]))
    with pytest.raises(ResidentsInvalid):
        parse_residents(json.dumps({"a": tree}))
