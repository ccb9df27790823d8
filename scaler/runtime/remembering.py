"""What a controller remembers beyond its own life, tied to where it is kept: what fleets learn, what residents agree on, and orders."""

from scaler.cluster.agents import Witnesses
from scaler.cluster.port import Cluster
from scaler.runtime.agreement import Agreement
from scaler.runtime.controller import Controller
from scaler.runtime.keeping import Keeping
from scaler.runtime.kept import Archive, Kept


def remembering(
    controller: Controller, cluster: Cluster, witnesses: Witnesses, archive: Archive
) -> tuple[Agreement, Keeping]:
    """Return what lets residents agree, and what keeps that and what the controller learns in an archive."""

    def take(found: Kept) -> None:
        controller.learn(found.histories)
        agreement.learn(found.recordings)
        controller.orders.learn(found.orders)

    def present() -> Kept:
        return Kept(
            histories=controller.learned,
            recordings=agreement.recordings,
            orders=controller.orders.standing,
        )

    keeping = Keeping(archive, take, present)
    agreement = Agreement(cluster, witnesses, keeping.hurry)
    orders = controller.orders
    orders.hurry, orders.urge, orders.keep = keeping.hurry, keeping.urge, keeping.keep
    return agreement, keeping
