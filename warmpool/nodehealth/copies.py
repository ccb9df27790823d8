"""A copy of what was found of the GPUs, for controllers to keep: an agent that has lost its file gets it back. PURE.

A node's disk may go while a GPU of it stays Bad: a file on a disk that ends with the pod, a node whose image is laid anew. So each word to
the controllers has a copy of what stands against GPUs, the leading controller keeps it on the node's object, and an agent that
begins without memory asks for it. What it gets is treated as the file is: a boot since then clears what a boot clears.

The copy is of what decides alone, and small: where nothing stands against any GPU there is none.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from warmpool.nodehealth.latches import from_json, gist, to_json
from warmpool.nodehealth.latching import latched, restated
from warmpool.nodehealth.records import RANK, Code, GpuRecord, NodeRecord, Rules
from warmpool.nodehealth.rules import BACK_SECONDS, after_boot, set_back
from warmpool.seats import Verdict

MOST_BYTES: Final = 32 * 1024
"""Of a copy; all annotations of an object together may have 256 KiB."""
_OFTEN_SECONDS: Final = 60.0
"""Times and counts of what stands already are copied no more often than this: each copy is a write to the API server."""
_DECIDES: Final = frozenset({Code.CANARY_FAILED, Code.UNCORRECTABLE})
"""Counts that later verdicts follow from, and that are few."""
_SIZES: Final = ((16, 200), (4, 60), (0, 0))
"""How many counts and errors, and how much text, of each GPU; the first that fits."""


class Copying:
    """Makes copies of a record that goes on changing, and few that differ."""

    def __init__(self) -> None:
        self._stands: tuple[object, ...] = ()
        self._essence: tuple[object, ...] = ()
        self._at = float("-inf")
        self._text = ""

    def of(self, record: NodeRecord, now: float) -> str:
        """Return a copy of a record; the last one where nothing has changed since, or little and lately.

        Args:
            record: what is remembered.
            now: monotonic seconds.
        """
        stands, essence = _stands(record), gist(record)
        often = now - self._at < _OFTEN_SECONDS
        if stands != self._stands or (essence != self._essence and not often):
            self._stands, self._essence, self._at, self._text = stands, essence, now, copied(record)
        return self._text


def _stands(record: NodeRecord) -> tuple[object, ...]:
    return (
        record.boot,
        *(
            (
                gpu.uuid,
                gpu.verdict,
                tuple((each.code, each.verdict, each.clears, each.asked is None) for each in gpu.latches),
                None if gpu.hold is None else gpu.hold.until,
                None if gpu.trial is None else gpu.trial.verdict,
            )
            for _, gpu in sorted(record.gpus.items())
            if _is_held(gpu)
        ),
    )


def _is_held(gpu: GpuRecord) -> bool:
    return bool(gpu.latches) or gpu.hold is not None or gpu.trial is not None


def copied(record: NodeRecord) -> str:
    """Return a copy as JSON; empty where nothing stands against any GPU."""
    held = sorted(filter(_is_held, record.gpus.values()), key=lambda gpu: (-RANK[gpu.verdict], gpu.uuid))
    if not held:
        return ""
    text = ""
    for counts, letters in _SIZES:
        text = _text(record, [_small(gpu, counts, letters) for gpu in held])
        if len(text) <= MOST_BYTES:
            return text
    small = [_small(gpu, *_SIZES[-1]) for gpu in held]
    while len(text) > MOST_BYTES:  # what is Bad comes first
        small.pop()
        text = _text(record, small)
    return text


def _text(record: NodeRecord, gpus: Iterable[GpuRecord]) -> str:
    kept = NodeRecord(
        at=record.at,
        boot=record.boot,
        most=record.most,
        gpus=MappingProxyType({gpu.uuid: gpu for gpu in gpus}),
    )
    return json.dumps(to_json(kept), separators=(",", ":"))


def _small(gpu: GpuRecord, counts: int, letters: int) -> GpuRecord:
    decide = [each for each in gpu.counts if each.code in _DECIDES]
    return replace(
        gpu,
        reading=None,
        streaks=MappingProxyType({}),
        counts=tuple(decide[max(0, len(decide) - counts) :]),
        xids=gpu.xids[max(0, len(gpu.xids) - counts) :],
        latches=tuple(replace(each, text=each.text[:letters]) for each in gpu.latches),
    )


# ---------------------------------------------------------------------- back from a copy


def restored(record: NodeRecord, text: str, rules: Rules, now: float) -> NodeRecord:
    """Add what a copy says to what an agent without memory has found itself so far; nothing is forgotten then.

    Args:
        record: what it has found.
        text: the copy; empty: nothing was kept, because nothing stood against any GPU.
        rules: what verdicts follow.
        now: Unix seconds.

    Raises:
        ValueError: the copy makes no sense.
    """
    kept = _read(text) if text else NodeRecord()
    if now < kept.at - BACK_SECONDS:
        kept = set_back(kept, now - kept.at)
    gpus = {uuid: _remembered(gpu) for uuid, gpu in record.gpus.items()}
    for uuid, old in kept.gpus.items():
        young = gpus.get(uuid)
        joined = old if young is None else _joined(old, young, rules, now)
        gpus[uuid] = restated(joined, now, rules)
    return replace(record, most=max(record.most, kept.most), gpus=MappingProxyType(gpus), lost=False)


def _read(text: str) -> NodeRecord:
    try:
        if len(text) > 2 * MOST_BYTES:
            raise ValueError(f"it has more than {2 * MOST_BYTES} letters")
        found = from_json(NodeRecord, json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the copy of what was found of the GPUs makes no sense: {error!r}") from error
    assert isinstance(found, NodeRecord)
    return found


def _remembered(gpu: GpuRecord) -> GpuRecord:
    """Return a GPU of which nothing is forgotten: it isn't waited for to be known any more."""
    if not gpu.forgotten:
        return gpu
    waits = gpu.trial is not None and gpu.trial.verdict is Verdict.OK
    return replace(gpu, forgotten=False, trial=None if waits else gpu.trial)


def _joined(old: GpuRecord, young: GpuRecord, rules: Rules, now: float) -> GpuRecord:
    """Return what both say of a GPU. The older counters stay, so that a reset since then is seen at the next reading."""
    booted = bool(old.boot) and bool(young.boot) and old.boot != young.boot
    if booted:
        old = after_boot(old, now, rules)
    joined = old
    for latch in young.latches:
        joined = latched(joined, latch)
    return replace(
        joined,
        bus_id=young.bus_id or old.bus_id,
        boot=young.boot or old.boot,
        answered_boot=young.answered_boot or old.answered_boot,
        answered_at=old.answered_at if young.answered_at is None else young.answered_at,
        reason=young.reason,
        driver_judges=young.driver_judges or old.driver_judges,
        baseline=young.baseline if booted else old.baseline,
        counts=(*old.counts, *young.counts),
        xids=tuple(sorted((*old.xids, *young.xids), key=lambda each: each.at)),
        streaks=young.streaks,
        shared=young.shared,
        reading=young.reading,
    )
