"""What can go wrong with an API server while the contract holds: each fault befalls the adapter alone, all the time."""

import itertools
from collections.abc import Callable
from functools import partial
from random import Random

from tests.fakes.kube_api import Call, Cut, KubeApi, patches
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.faults import Answer
from tests.fakes.kube_api.kinds import POD

Spoil = Callable[[KubeApi], None]


def sound(_: KubeApi) -> None:
    """Nothing goes wrong."""


def often(call: Call, *, share: float, random: Random) -> bool:
    return call.verb not in {"watch", "list"} and random.random() < share


def slow(api: KubeApi) -> None:
    api.faults.delay(0.15, lambda call: call.verb != "watch")
    api.faults.spacing = 0.02


def throttled(api: KubeApi) -> None:
    api.faults.answer(Answer(status=429, retry_after="0.1"), partial(often, share=0.3, random=Random(1)))


def failing(api: KubeApi) -> None:
    """Some answers are faults of the server, or of a proxy before it; what they answer wasn't done."""
    api.faults.answer(Answer(status=500), partial(often, share=0.2, random=Random(4)))
    api.faults.answer(Answer(status=502, html=True), partial(often, share=0.1, random=Random(5)))


def lost(api: KubeApi) -> None:
    """A third of the writes are carried out, and nobody is told so."""
    random = Random(2)
    api.faults.cut(Cut.AFTER, lambda call: call.verb == "patch" and random.random() < 1 / 3)


def watches_end(api: KubeApi) -> None:
    """Every other write ends the watches, and versions are forgotten now and then."""
    count = itertools.count(1)

    def dropped(call: Call) -> bool:
        if call.verb in {"patch", "update", "delete", "create"}:
            number = next(count)
            if number % 2 == 0:
                api.faults.drop_watches()
            if number % 7 == 0:
                api.store.compact()
        return False

    api.faults.delay(0.0, dropped)


def others_write(api: KubeApi) -> None:
    """A kubelet writes a pod's status right before many a write of ours."""
    random, writes = Random(3), itertools.count(1)

    def overtaken(call: Call) -> bool:
        if call.verb == "patch" and call.resource == "pods" and random.random() < 0.4:
            target = Target(kind=POD, namespace=call.namespace, name=call.name, subresource="status")
            if api.store.get(POD, target.key) is not None:
                api.patch(target, patches.MERGE, {"status": {"message": f"write {next(writes)}"}}, {})
        return False

    api.faults.delay(0.0, overtaken)


ALL: tuple[Spoil, ...] = (slow, throttled, failing, lost, watches_end, others_write)
