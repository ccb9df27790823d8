"""What an engine must be started with to live on a seat: environment and arguments, each with the reason for it. PURE.

Only what is known stands here: what a real vLLM 0.32 was seen to do, what the source of SGLang 0.5.23 says, and what the reference
engine, which is ours, takes. Of another version it is said that nobody tried.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from warmpool.engines.kinds import EngineKind

KNOWN_VERSIONS: Final = {EngineKind.VLLM: "0.32.0", EngineKind.SGLANG: "0.5.23"}
"""The version that each kind's facts were taken from. The reference engine comes with this project; Generic engines differ anyway."""

_MIB: Final = 2**20
_LOW_UTILIZATION: Final = "0.05"
_MOST_STATIC: Final = 0.999
"""Largest share of three decimal places that leaves anything."""
_CONTROL_PORT: Final = "{controlPort}"
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What is known of the engine and its seat.

    Attributes:
        kind: the kind of engine.
        shared: other residents live on the seat, so that KV memory has to be given back.
        parked: its weights may go to host memory.
        port: port of its control listener; None lets the agent choose.
        kv_mib: KV memory that it may take, in MiB; None if that isn't decided.
        weights_mib: size of its weights on one device, in MiB; None if unknown.
        gpu_mib: memory of one device, in MiB; None if unknown.
        version: version of the engine; empty if unknown.
    """

    kind: EngineKind
    shared: bool = True
    parked: bool = False
    port: int | None = None
    kv_mib: int | None = None
    weights_mib: int | None = None
    gpu_mib: int | None = None
    version: str = ""

    @property
    def control_port(self) -> str:
        """The port as it is written: a number, or the agent's placeholder."""
        return _CONTROL_PORT if self.port is None else str(self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One variable or argument.

    Attributes:
        name: its name.
        value: its value; empty for a switch.
        why: what goes wrong without it.
    """

    name: str
    value: str = ""
    why: str

    def words(self) -> tuple[str, ...]:
        """Return it as words of a command line."""
        return (self.name, self.value) if self.value else (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that an engine must be started with.

    Attributes:
        kind: the kind of engine.
        facts: what the settings rest on.
        environment: variables.
        arguments: arguments, in order.
        notes: what can't be said as an argument.
    """

    kind: EngineKind
    facts: str
    environment: tuple[Setting, ...] = ()
    arguments: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()


def settings_for(need: Need) -> Settings:
    """Return what an engine of this kind must be started with."""
    match need.kind:
        case EngineKind.VLLM:
            return _vllm(need)
        case EngineKind.SGLANG:
            return _sglang(need)
        case EngineKind.REFERENCE:
            return _reference(need)
        case EngineKind.GENERIC:
            return _generic(need)


def misfit(need: Need) -> str:
    """Say in words what of an engine doesn't fit on its device, as far as sizes are known; empty if it fits."""
    parts = {"weights": need.weights_mib, "KV memory": need.kv_mib}
    known = {what: mib for what, mib in parts.items() if mib is not None}
    total = sum(known.values())
    if need.gpu_mib is None or total < need.gpu_mib:
        return ""
    told = " and ".join(f"{mib} MiB of {what}" for what, mib in known.items())
    return (
        f"{told} don't fit on a device of {need.gpu_mib} MiB, which also holds what the engine computes with"
    )


_UTILIZATION: Final = ("--gpu-memory-utilization", "--mem-fraction-static")


def memory_utilization(command: Sequence[str]) -> str:
    """Return which share of the device's memory a command lets its engine take, as it is written there; empty if it doesn't say."""
    found = ""
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in _UTILIZATION:
            found = value if equals else next(iter(command[place + 1 : place + 2]), "")
    return found if re.fullmatch(r"[0-9.]{1,8}", found) else ""


def staged_checkpoint(kind: EngineKind, command: Sequence[str]) -> str:
    """Return the checkpoint that an engine asks the node's stage daemon for, as its command has it; empty if it asks for none.

    The reference engine asks wherever it is told of a daemon; vLLM with our loader, and a `stage_socket` among that one's options.
    """
    if kind is EngineKind.REFERENCE:
        return _value(command, "--checkpoint")
    if kind is EngineKind.VLLM and "stage_socket" in _value(command, "--model-loader-extra-config"):
        served = [after for word, after in pairwise(command) if word == "serve" and not after.startswith("-")]
        return served[0] if served else _value(command, "--model")
    return ""


def _value(command: Sequence[str], flag: str) -> str:
    """Return what an argument is set to; empty where it isn't there."""
    joined = (word.partition("=")[2] for word in command if word.startswith(f"{flag}="))
    apart = (after for word, after in pairwise(command) if word == flag)
    return next(joined, "") or next(apart, "")


def _facts(need: Need, basis: str) -> str:
    known = KNOWN_VERSIONS[need.kind]
    if not need.version:
        return f"{basis} {known}. The version of yours was not given: what differs shows when the agent probes it."
    if need.version == known:
        return f"{basis} {known}, which is yours."
    return f"{basis} {known}. Nobody tried {need.version}: what differs shows when the agent probes it."


def _listener(need: Need) -> tuple[Setting, Setting]:
    return (
        Setting(
            name="--host",
            value=_LOOPBACK,
            why="its control routes are on the same listener as /v1, and whoever reaches that can stop it; clients come through the guard",
        ),
        Setting(
            name="--port",
            value=need.control_port,
            why="a port of its own: residents of a seat live side by side"
            + ("; the agent fills it in" if need.port is None else ""),
        ),
    )


# ------------------------------------------------------------------ vLLM


def _vllm(need: Need) -> Settings:
    return Settings(
        kind=need.kind,
        facts=_facts(need, "As seen on a real vLLM"),
        environment=(
            Setting(
                name="VLLM_SERVER_DEV_MODE",
                value="1",
                why="brings /pause, /resume, /release_kv_cache_memory and /wake_up; without it they answer 404 and it can't be paused",
            ),
        ),
        arguments=(*_listener(need), *_vllm_memory(need)),
        notes=_vllm_notes(need),
    )


def _vllm_memory(need: Need) -> Iterator[Setting]:
    if need.shared or need.parked:
        yield Setting(name="--enable-sleep-mode", why=_sleep_mode(need))
    if not need.shared:
        return
    if need.kv_mib is not None:
        yield Setting(
            name="--kv-cache-memory-bytes",
            value=str(need.kv_mib * _MIB),
            why="its KV memory is this, and not what was left on the device when it started: neighbours come and go",
        )
    yield Setting(
        name="--gpu-memory-utilization",
        value=_LOW_UTILIZATION,
        why="it refuses to start unless this share of the device is free, and a neighbour may have the rest; with "
        "--kv-cache-memory-bytes it sizes nothing",
    )


def _sleep_mode(need: Need) -> str:
    release, park = "puts its KV memory where it can be released from", "lets its weights go to host memory"
    if need.shared and need.parked:
        return f"{release}, and {park}; without it a release frees nothing, and it is never parked"
    return (
        f"{release}; without it a release frees nothing" if need.shared else f"{park}; without it they stay"
    )


def _vllm_notes(need: Need) -> tuple[str, ...]:
    notes = ["Leave --api-key away: the agent sends none, and the listener is on loopback."]
    if need.shared and need.kv_mib is None:
        notes.append(
            "--kv-cache-memory-bytes is missing: give --kv-mib. Without it the low --gpu-memory-utilization leaves no room for KV memory."
        )
    if need.shared:
        notes.append(
            "Releasing KV memory needs a CUDA device. Beside a KV connector (--kv-transfer-config) it is refused."
        )
    if need.parked:
        notes += [
            _host_memory(need),
            "Leave --mm-encoder-tp-mode data and --kv-transfer-config away: beside them it is never parked.",
            "To be parked it needs its KV memory for a moment: an order while somebody serves may find no room.",
        ]
    return tuple(notes)


def _host_memory(need: Need) -> str:
    weights = "its weights" if need.weights_mib is None else f"{need.weights_mib} MiB a device"
    return (
        f"Parked weights lie in host memory, and the copy stays once it is made: the container's memory limit needs {weights}"
        " beside what the engine takes anyway."
    )


# ------------------------------------------------------------------ SGLang


def _sglang(need: Need) -> Settings:
    return Settings(
        kind=need.kind,
        facts=_facts(need, "After the source of SGLang"),
        arguments=(*_listener(need), *_sglang_memory(need)),
        notes=_sglang_notes(need),
    )


def _sglang_memory(need: Need) -> Iterator[Setting]:
    if need.shared or need.parked:
        yield Setting(
            name="--enable-memory-saver",
            why="without it a release of memory answers 200 and frees nothing; it needs the package torch-memory-saver",
        )
    if need.parked:
        yield Setting(
            name="--enable-weights-cpu-backup",
            why="keeps a copy of the weights in host memory; without it a release throws them away",
        )
    if not need.shared:
        return
    fraction = _static_fraction(need)
    if fraction is not None:
        yield Setting(
            name="--mem-fraction-static",
            value=f"{min(fraction, _MOST_STATIC):.3f}",
            why="weights and KV memory as a share of the device: SGLang takes no number of bytes",
        )


def _static_fraction(need: Need) -> float | None:
    if need.kv_mib is None or need.weights_mib is None or not need.gpu_mib:
        return None
    return (need.weights_mib + need.kv_mib) / need.gpu_mib


def _sglang_notes(need: Need) -> tuple[str, ...]:
    notes = [
        "Leave --api-key and --admin-api-key away: the agent sends none, and the listener is on loopback."
    ]
    if need.shared and _static_fraction(need) is None:
        notes.append(
            "--mem-fraction-static is missing: give --kv-mib, --weights-mib and --gpu-mib. Without it SGLang takes what is left on "
            "the device."
        )
    if need.shared:
        notes.append(
            "Beside speculative decoding the release of KV memory is refused: it has freed draft weights."
        )
    if need.parked:
        notes.append(_host_memory(need))
    return tuple(notes)


# ------------------------------------------------------------------ the others


def _reference(need: Need) -> Settings:
    return Settings(
        kind=need.kind,
        facts="The reference engine comes with this project.",
        arguments=(
            Setting(
                name="--host", value="{host}", why="the agent says on which address the guarded listener is"
            ),
            Setting(
                name="--port", value="{port}", why="the guarded listener, for clients; the agent fills it in"
            ),
            Setting(
                name="--control-port",
                value=need.control_port,
                why="the listener with the control routes, which stays on loopback",
            ),
            Setting(name="--guard", value="closed", why="it is born out of rotation"),
            Setting(name="--die-with-parent", why="an engine that nobody directs holds a device for nothing"),
        ),
        notes=(
            "Its KV memory is what --max-num-seqs sequences of --max-model-len tokens take: it takes no number of bytes.",
            *(
                (
                    _host_memory(need),
                    "Leave --kv-memory allocated away: weights in torch's allocations can't be parked.",
                )
                if need.parked
                else ()
            ),
        ),
    )


def _generic(need: Need) -> Settings:
    notes = [
        "It can't be paused, only kept out of rotation: on a spare seat it goes on holding all its memory and may compute.",
        "Its completions must tell token ids (return_token_ids, as vLLM and SGLang do), or it can't be proven and never serves.",
        "Its own options for address and port may have other names.",
    ]
    if need.shared:
        notes.insert(0, "It can't share a seat: it gives no KV memory back. Give it a fleet of its own.")
    if need.parked:
        notes.insert(0, "It can't be parked: nobody can tell it to move its weights.")
    return Settings(
        kind=need.kind,
        facts="Generic engines differ: this is what all of them need.",
        arguments=_listener(need),
        notes=tuple(notes),
    )
