"""What a controller on Kubernetes makes of a policy set: each fleet is a workload that the cluster must be able to scale."""

from collections.abc import Callable, Sequence

from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.fleets import KubeFleet, find_fleets
from scaler.errors import ClusterError, PolicyFault, UserError
from scaler.policy.compile import PolicySet
from scaler.policy.reading import Reading
from scaler.runtime.controller import PolicyTable
from scaler.runtime.policy_tables import table_of


class KubePolicies:
    """Puts sets in force for the workloads of a namespace.

    Args:
        client: knows which kinds there are.
        namespace: where the fleets are.
        begun: the fleets of the first set.
        fleets: takes those of a new one.
        adopt: takes its table.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        begun: Sequence[KubeFleet],
        fleets: Callable[[Sequence[KubeFleet]], None],
        adopt: Callable[[PolicyTable], None],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._fleets = fleets
        self._adopt = adopt
        self._found = {fleet.name: fleet for fleet in begun}
        self._in_force = frozenset(self._found)

    async def refuse(self, reading: Reading) -> Sequence[PolicyFault]:
        """See `Force.refuse`."""
        found, faults = {}, []
        followed = {each.target.kind for each in self._found.values()}
        for name, fleet in reading.set.fleets.items():
            try:
                (found[name],) = await find_fleets(self._client, self._namespace, [fleet], followed)
                followed.add(found[name].target.kind)
            except UserError as error:
                faults.append(reading.fault("Fleet", name, str(error), error.hint))
            except ClusterError as error:
                message = f"the cluster can't be asked for its workload's kind: {error}"
                faults.append(reading.fault("Fleet", name, message, "read the policies again later"))
        if not faults:
            self._found = found
        return faults

    def adopt(self, policies: PolicySet) -> Sequence[str]:
        """See `Force.adopt`; what isn't refused has been found."""
        gone = self._in_force - policies.fleets.keys()
        self._in_force = frozenset(policies.fleets)
        self._fleets([self._found[name] for name in policies.fleets])
        self._adopt(table_of(policies))
        return [f"fleet {name} is in no policy file: its seats are left as they are" for name in sorted(gone)]
