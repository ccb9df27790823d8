"""Policies that a ConfigMap holds: followed by a watch, and read by the process that reads files, so that one reader judges both."""

import os
from collections.abc import Sequence

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.policy_map import PolicyConfigMap
from scaler.errors import ClusterError, UserError
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyTexts, Reading
from scaler.runtime.controller_options import ConfigMapName
from scaler.runtime.policy_exchange import Answer, Handed
from scaler.runtime.policy_process import PolicyReader, ReaderFailed, Verb


class ConfigMapReader:
    """Reads a ConfigMap's policies. `run` inside a TaskGroup: until the ConfigMap has been looked for, nothing has changed.

    Args:
        config_map: holds them.
        process: judges them.
    """

    def __init__(self, config_map: PolicyConfigMap, process: PolicyReader) -> None:
        self._map = config_map
        self._process = process
        self._read: str | None = None  # the version that was read last; empty for none there

    @property
    def paths(self) -> Sequence[str]:
        """See `Reader.paths`."""
        return (self._map.place,)

    async def ask(self, verb: Verb, in_force: PolicySet) -> tuple[Answer, PolicySet | None]:
        """See `Reader.ask`; `read` asks the server, whatever the watch has told.

        Raises:
            ReaderFailed: the server doesn't say what is there, or the process doesn't judge it.
        """
        if verb == "read":
            try:
                found = await self._map.fetch()
            except ClusterError as error:
                raise ReaderFailed(
                    f"the API server doesn't say what {self._map.place} holds: {error}"
                ) from error
        elif self._map.synced:
            found = self._map.current
        else:
            return Answer(), None
        version = "" if found is None else found.version
        if verb == "look" and version == self._read:
            return Answer(), None
        texts = None if found is None else found.texts
        answer = await self._process.take(Handed(place=self._map.place, texts=texts), in_force)
        self._read = version
        return answer

    async def run(self) -> None:
        """Follow the ConfigMap until cancelled."""
        await self._map.run()

    async def close(self) -> int | None:
        """See `Reader.close`."""
        return await self._process.close()


def config_map(client: KubeClient, name: ConfigMapName, namespace: str) -> PolicyConfigMap:
    """Return the ConfigMap that is meant.

    Args:
        client: reaches the server.
        name: which.
        namespace: where it is unless it says so itself.
    """
    return PolicyConfigMap(client, name.namespace or namespace, name.name)


async def first_reading(wanted: AccessOptions, name: ConfigMapName) -> Reading:
    """Read what a ConfigMap holds, for a process that begins.

    Raises:
        PolicyError: it isn't there, or its policies can't be used.
        UserError: the cluster can't be reached as it was named.
    """
    access = await find_access(wanted, os.environ)
    async with KubeClient(access) as client:
        found = config_map(client, name, access.namespace)
        try:
            held = await found.fetch()
        except ClusterError as error:
            raise UserError(
                f"the cluster can't be asked for the policies in {found.place}: {error}",
                hint="is this the right cluster? Name another with --kubeconfig and --context",
            ) from error
    return PolicyTexts().read(found.place, None if held is None else held.texts)
