"""Whether a Service or an InferencePool could send requests to residents that are paused. PURE.

All residents of a seat listen on its pod, and one of them serves. A Service that selects the pods without asking for a
resident's serving label reaches it while it is paused too: its guard refuses what it is sent, and users see errors.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from scaler.cluster.kube.views import Service, Workload
from warmpool.seats import FLEET_LABEL, SEAT_LABEL, SERVING_LABEL_PREFIX


def reaching(workload: Workload, services: Iterable[Service], fleet: str) -> Iterator[str]:
    """Say, for each of them that could reach paused residents of a fleet, which they are and how to mend it.

    Args:
        workload: what makes the fleet's pods.
        services: all Services and InferencePools of its namespace.
        fleet: the fleet's name.
    """
    residents = _residents(workload.residents)
    labels = {**workload.labels, FLEET_LABEL: fleet}
    for service in services:
        if not service.selector or not may_select(service.selector, labels, frozenset(residents.values())):
            continue
        for port in service.ports:
            number = workload.ports.get(port) if isinstance(port, str) else port
            policy = residents.get(number or 0)
            if policy is not None and service.selector.get(SERVING_LABEL_PREFIX + policy) != "true":
                yield (
                    f"{service.kind} {service.name} sends requests to port {port}, which is {policy}'s, of pods where {policy} may "
                    f'be paused; add {SERVING_LABEL_PREFIX}{policy}: "true" to its selector'
                )


def may_select(selector: Mapping[str, str], labels: Mapping[str, str], policies: frozenset[str]) -> bool:
    """Whether pods of these labels are, or may come to be, selected; a seat gets the serving labels of its residents alone."""
    return all(
        labels.get(key) == value
        or key == SEAT_LABEL
        or (value == "true" and key.startswith(SERVING_LABEL_PREFIX) and _policy(key) in policies)
        for key, value in selector.items()
    )


def _policy(label: str) -> str:
    return label.removeprefix(SERVING_LABEL_PREFIX)


def _residents(text: str) -> Mapping[int, str]:
    """Return policies by the ports at which they are reached, guarded or not; a list that can't be read has none."""
    try:
        return {
            int(each[key]): str(each["policy"])
            for each in json.loads(text or "[]")
            for key in ("port", "enginePort")
            if each.get(key) is not None
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
