"""What became of attempts to reload policies, on the metrics of whichever process reloads them."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from scaler.runtime.metrics import catalogue
from warmpool.metric_families import Family, counter, gauge


@dataclass(frozen=True, slots=True)
class ReloadFamilies:
    """A process's families of reloads.

    Attributes:
        success: whether the last attempt was one.
        at: when the files were last read and could be used.
        attempts: all of them, by how they ended.
    """

    success: Family
    at: Family
    attempts: Family


CONTROLLER = ReloadFamilies(catalogue.RELOAD_SUCCESS, catalogue.LAST_RELOAD, catalogue.RELOADS)
GATEWAY = ReloadFamilies(
    catalogue.GATEWAY_RELOAD_SUCCESS, catalogue.GATEWAY_LAST_RELOAD, catalogue.GATEWAY_RELOADS
)


class ReloadMetrics:
    """Counts one process's attempts to reload.

    Args:
        registry: where the families are registered.
        families: which they are.
    """

    def __init__(self, registry: CollectorRegistry, families: ReloadFamilies) -> None:
        self._success = gauge(families.success, registry)
        self._at = gauge(families.at, registry)
        self._attempts = counter(families.attempts, registry)
        for outcome in catalogue.RELOAD_OUTCOMES:
            self._attempts.labels(outcome)

    def loaded(self, at: float) -> None:
        """Note that the policies in force are those that were asked for, at Unix time `at`."""
        self._success.set(1)
        self._at.set(at)

    def reloaded(self, outcome: str, at: float) -> None:
        """Count an attempt to reload the policies; `outcome` is one of the catalogue's."""
        self._attempts.labels(outcome).inc()
        if outcome in {"Loaded", "Unchanged"}:
            self.loaded(at)
        else:
            self._success.set(0)
