"""Pushed samples as the controller's `Signals`: stored, and a reason to tick at once."""

from collections.abc import Sequence

from scaler.core.model import Load
from scaler.runtime.clock import Clock
from scaler.runtime.mailbox import Mailbox
from scaler.signals.pushed import PushedSamples
from warmpool.seats import PolicyName


class PushedSignals:
    """What gateways push.

    Args:
        mailbox: woken by each sample.
        clock: what samples' ages are taken with.
    """

    def __init__(self, mailbox: Mailbox, clock: Clock) -> None:
        self._samples = PushedSamples()
        self._mailbox = mailbox
        self._clock = clock

    def ingest(self, body: bytes) -> None:
        """Take a pushed sample.

        Raises:
            SampleRejected: it is malformed; it changed nothing.
        """
        self._samples.ingest(body, self._clock.wall())
        self._mailbox.wake("sample", urgent=True)

    def load(self, policy: PolicyName, now: float) -> Load:
        """See `Signals.load`; ages are taken on the wall clock that samples are stamped with."""
        del now
        return self._samples.load(policy, self._clock.wall())

    def observed_at(self, policy: PolicyName) -> float | None:
        """See `Signals.observed_at`."""
        return self._samples.sampled_at(policy, self._clock.wall())

    def seen(self) -> None:
        """See `Signals.seen`."""
        self._samples.take_peaks()

    def gateways(self) -> Sequence[str]:
        """Return the live gateways: those whose last sample still counts."""
        return self._samples.instances(self._clock.wall())
