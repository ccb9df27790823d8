"""What engines must be started with: every setting has its reason, and nothing is said of versions that nobody tried."""

from dataclasses import replace

import pytest

from warmpool.engines.arguments import KNOWN_VERSIONS, Need, Settings, misfit, settings_for
from warmpool.engines.kinds import EngineKind


def words(settings: Settings) -> list[str]:
    return [word for each in settings.arguments for word in each.words()]


def test_a_vllm_that_shares_its_seat() -> None:
    settings = settings_for(Need(kind=EngineKind.VLLM, port=8101, kv_mib=40_960))
    assert [(each.name, each.value) for each in settings.environment] == [("VLLM_SERVER_DEV_MODE", "1")]
    assert words(settings) == [
        *("--host", "127.0.0.1", "--port", "8101", "--enable-sleep-mode"),
        *("--kv-cache-memory-bytes", "42949672960", "--gpu-memory-utilization", "0.05"),
    ]


def test_a_vllm_alone_on_its_seat_keeps_its_memory_to_itself() -> None:
    assert words(settings_for(Need(kind=EngineKind.VLLM, shared=False, port=8101))) == [
        *("--host", "127.0.0.1", "--port", "8101"),
    ]


def test_an_sglang_that_shares_its_seat() -> None:
    need = Need(kind=EngineKind.SGLANG, port=8101, kv_mib=40_000, weights_mib=16_000, gpu_mib=140_000)
    assert words(settings_for(need)) == [
        *("--host", "127.0.0.1", "--port", "8101", "--enable-memory-saver", "--mem-fraction-static", "0.400"),
    ]


@pytest.mark.parametrize(
    ("need", "switches"),
    [
        (Need(kind=EngineKind.VLLM, shared=False, parked=True), ["--enable-sleep-mode"]),
        (
            Need(kind=EngineKind.SGLANG, shared=False, parked=True),
            ["--enable-memory-saver", "--enable-weights-cpu-backup"],
        ),
    ],
)
def test_an_engine_that_is_to_be_parked_needs_the_same_alone_as_beside_others(
    need: Need, switches: list[str]
) -> None:
    assert words(settings_for(need))[4:] == switches
    assert set(switches) <= set(words(settings_for(replace(need, shared=True))))


@pytest.mark.parametrize("kind", [each for each in EngineKind if each is not EngineKind.GENERIC])
def test_what_parking_takes_of_the_host_is_said(kind: EngineKind) -> None:
    notes = settings_for(Need(kind=kind, parked=True, weights_mib=64_000)).notes
    assert any("needs 64000 MiB a device" in note for note in notes)


@pytest.mark.parametrize(
    ("need", "missing"),
    [
        (Need(kind=EngineKind.VLLM), "give --kv-mib"),
        (Need(kind=EngineKind.SGLANG, kv_mib=1), "give --kv-mib, --weights-mib and --gpu-mib"),
        (Need(kind=EngineKind.GENERIC), "It can't share a seat"),
        (Need(kind=EngineKind.GENERIC, parked=True), "It can't be parked"),
    ],
)
def test_what_could_not_be_worked_out_is_said(need: Need, missing: str) -> None:
    assert any(missing in note for note in settings_for(need).notes)


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize("shared", [True, False])
def test_every_setting_has_a_reason(kind: EngineKind, shared: bool) -> None:  # noqa: FBT001 (a table)
    settings = settings_for(Need(kind=kind, shared=shared, kv_mib=1, weights_mib=1, gpu_mib=10))
    assert all(each.why for each in (*settings.environment, *settings.arguments))


@pytest.mark.parametrize("kind", KNOWN_VERSIONS)
def test_a_version_that_nobody_tried_is_called_that(kind: EngineKind) -> None:
    need = Need(kind=kind)
    known = KNOWN_VERSIONS[kind]
    assert f"{known}, which is yours" in settings_for(replace(need, version=known)).facts
    assert "Nobody tried 99.0" in settings_for(replace(need, version="99.0")).facts
    assert "was not given" in settings_for(need).facts


def test_the_agent_chooses_the_port_where_none_is_given() -> None:
    for kind in EngineKind:
        assert "{controlPort}" in words(settings_for(Need(kind=kind)))


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            (40_960, 153_600, 143_771),
            "153600 MiB of weights and 40960 MiB of KV memory don't fit on a device of 143771",
        ),
        ((None, 100, 100), "100 MiB of weights don't fit on a device of 100 MiB"),
        ((101, None, 100), "101 MiB of KV memory don't fit on a device of 100 MiB"),
        ((40, 59, 100), ""),
        ((1000, 1000, None), ""),
        ((None, None, 1), ""),
    ],
)
def test_what_does_not_fit_on_a_device_is_said(
    kind: EngineKind, sizes: tuple[int | None, int | None, int | None], said: str
) -> None:
    kv, weights, gpu = sizes
    found = misfit(Need(kind=kind, kv_mib=kv, weights_mib=weights, gpu_mib=gpu))
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_share_is_never_rounded_up_to_the_whole_device() -> None:
    settings = settings_for(Need(kind=EngineKind.SGLANG, kv_mib=99_997, weights_mib=1, gpu_mib=100_000))
    assert words(settings)[-2:] == ["--mem-fraction-static", "0.999"]
