"""The controller on Kubernetes: several replicas, of which one leads at a time, and all answer.

A replica that stands by keeps the same caches, takes the same samples and reports, and decides for itself without acting, so that it
goes on at once where the leader ends. What KEDA and people ask it, it answers as the leader does: it follows the leader's decisions,
and passes questions on. It stands for election once it has seen the cluster.
"""

import asyncio
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp
import structlog

from scaler.cluster.http_agents import HttpAgents
from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.cluster import KubeCluster, Place
from scaler.cluster.kube.config_maps import KeptConfigMaps
from scaler.cluster.kube.device_taints import DeviceMarking, DevicePost, DeviceTaints
from scaler.cluster.kube.election import Elector, KubeLeases, Leadership, boot_time
from scaler.cluster.kube.events import Event, Subject
from scaler.cluster.kube.fleets import KubeFleet, find_fleets
from scaler.cluster.kube.lease import Candidate
from scaler.cluster.kube.marking import NodeMarking, Post
from scaler.cluster.kube.nodes import NodeWriter
from scaler.cluster.kube.writing import Writing
from scaler.cluster.node_reports import NodeReports
from scaler.cluster.static.asking import StateReader
from scaler.errors import ClusterError, NotFound, UserError
from scaler.policy.reading import Reading
from scaler.runtime.api import Intake
from scaler.runtime.config_map_policies import ConfigMapReader, config_map
from scaler.runtime.controller import PolicyTable
from scaler.runtime.controller_assembly import assemble
from scaler.runtime.controller_options import KubernetesOptions
from scaler.runtime.controller_wiring import Begin, Seats, give_up_when_superseded
from scaler.runtime.decision_feed import PATH, DecisionFeed
from scaler.runtime.decision_follower import DecisionFollower
from scaler.runtime.keda_watch import KedaWatch
from scaler.runtime.kept_config_maps import ConfigMapArchive
from scaler.runtime.kube_events import KubeEvents
from scaler.runtime.kube_policies import KubePolicies
from scaler.runtime.leaders_answers import LeadersAnswers
from scaler.runtime.led import LedAgents, led_lanes
from scaler.runtime.lifetime import or_stop
from scaler.runtime.metrics.keda import FindingMetrics
from scaler.runtime.metrics.nodes import Marked, NodeMarkMetrics
from scaler.runtime.nodes_api import NodesApi
from scaler.runtime.policy_process import PolicyReader
from scaler.runtime.policy_tables import table_of
from scaler.runtime.reload import Followed, Force
from scaler.runtime.seat_names import LentSeats
from scaler.runtime.sockets import url_of
from warmpool.seats import FleetName, PolicyName

log = structlog.get_logger(__name__)

LEASE: Final = "emberpool-controller"
"""Name of the Lease; one controller leads in a namespace."""
_AGE_SECONDS: Final = 1.0
POD_IP: Final = "POD_IP"
"""The environment variable with the pod's address, which the manifests set."""


async def serve(stack: AsyncExitStack, begin: Begin, policies: Reading) -> None:
    """Run until a signal asks for the end.

    Raises:
        UserError: the cluster can't be reached as it was named, or policies and cluster don't go together.
        Stopped: in an exception group; the signal came first.
    """
    options = begin.options.kubernetes
    assert options is not None
    me = Candidate(
        identity=f"{socket.gethostname()}-{secrets.token_hex(3)}",
        address=advertised(options, begin.listener, os.environ),
    )
    access = await find_access(access_options(options), os.environ)
    client = await stack.enter_async_context(KubeClient(access))
    session = await stack.enter_async_context(aiohttp.ClientSession())
    role = Role()
    lanes = led_lanes(lambda: role.leadership)
    place = Place(
        client=client,
        namespace=access.namespace,
        instance=me.identity,
        through=lanes,
        clock=boot_time,
    )
    fleets = await or_stop(begin.stop, _fleets(place, policies))
    log.info("cluster", server=access.server, namespace=access.namespace, source=access.source)
    site = Site(place=place, fleets=fleets, session=session, me=me, role=role)
    await Replica(stack, begin, site).serve(stack)


def access_options(options: KubernetesOptions) -> AccessOptions:
    """Return how the cluster's API server is found."""
    return AccessOptions(kubeconfig=options.kubeconfig, context=options.context, namespace=options.namespace)


async def _fleets(place: Place, policies: Reading) -> tuple[KubeFleet, ...]:
    try:
        return await find_fleets(place.client, place.namespace, policies.set.fleets.values())
    except ClusterError as error:
        raise UserError(
            f"the cluster can't be asked for the fleets' workloads: {error}",
            hint="is this the right cluster? Name another with --kubeconfig and --context",
        ) from error


def advertised(options: KubernetesOptions, listener: socket.socket, environ: Mapping[str, str]) -> str:
    """Return the base URL under which other replicas reach this one.

    Raises:
        UserError: it listens on all addresses, and nobody says which of them is to be named.
    """
    if options.advertise:
        return options.advertise.rstrip("/")
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_unspecified:
        return url_of(listener)
    pod = environ.get(POD_IP, "")
    if not pod:
        raise UserError(
            f"with --host {host} other replicas can't be told where this one is",
            hint=f"set {POD_IP} to the pod's address by the downward API (fieldPath: status.podIP), or name --advertise URL",
        )
    return f"http://[{pod}]:{port}" if ":" in pod else f"http://{pod}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a replica works, and as whom.

    Attributes:
        place: the cluster, with lanes that are closed to who doesn't lead.
        fleets: the first fleets.
        session: reaches agents and other replicas.
        me: who it is.
        role: whether it leads.
    """

    place: Place
    fleets: tuple[KubeFleet, ...]
    session: aiohttp.ClientSession
    me: Candidate
    role: "Role"


class Role:
    """Whether this replica leads.

    Attributes:
        leadership: the term that is on; None while it stands by.
        has_led: whether it ever did.
    """

    def __init__(self) -> None:
        self.leadership: Leadership | None = None
        self.has_led = False

    @property
    def leads(self) -> bool:
        """Whether it does now."""
        return self.leadership is not None

    @contextmanager
    def of(self, leadership: Leadership) -> Iterator[None]:
        """Lead for as long as the context lasts."""
        self.leadership, self.has_led = leadership, True
        try:
            yield
        finally:
            self.leadership = None


class Replica:
    """One replica of the controller.

    Args:
        stack: what has to be closed goes onto it.
        begin: what it begins with.
        site: where it works.

    Attributes:
        parts: what it is made of.
    """

    def __init__(self, stack: AsyncExitStack, begin: Begin, site: Site) -> None:
        place, token = site.place, begin.options.token
        self._begin = begin
        self._me = site.me
        self._role = site.role
        self._cluster = KubeCluster(place, site.fleets, StateReader(site.session, token))
        leases = KubeLeases(place.client, place.namespace, LEASE, place.wall)
        self._elector = Elector(
            leases, site.me, clock=place.clock, highest=lambda: self._cluster.highest_epoch
        )
        self._policies = self._reader(place)
        self._watch = KedaWatch(place.client, place.namespace, begin.policies, self._replicas, self._tell)
        self.parts = assemble(stack, begin, self._seats(site, HttpAgents(site.session, token)))
        self._feed = DecisionFeed(self.parts.keda.board, begin.clock, token)
        self._follower = DecisionFollower(
            lambda: self._elector.leader, site.me.identity, self.parts.keda.followed, begin.clock
        )
        self._reports = NodeReports(begin.clock.monotonic)
        self._marking = NodeMarking(self._post(site))
        self._devices = DeviceMarking(self._device_post(site))
        FindingMetrics(begin.registry, lambda: self._watch.counts() if self._role.leads else {})
        NodeMarkMetrics(begin.registry, self._counted)
        app = self.parts.app
        app.router.add_get(PATH, self._feed.stream)
        app.add_routes(self._watch.routes())
        intake = Intake(report=self._reports.take, token=token)
        nodes = NodesApi(
            self._reports, self._marking, self._devices, intake, begin.clock.wall, self._heed_nodes
        )
        app.add_routes(nodes.routes())
        passing = LeadersAnswers(
            site.session, lambda: self._role.leads, lambda: self._elector.leader, site.me.identity
        )
        passing.serve_on(app)

    def _seats(self, site: Site, agents: HttpAgents) -> Seats:
        place, cluster = site.place, self._cluster
        maps = KeptConfigMaps(Writing(place.client), place.through, place.namespace)
        archive = ConfigMapArchive(maps, self._begin.clock, self._homes)
        lent = LentSeats()
        events = KubeEvents(self._tell, place.namespace, LEASE, cluster.uid, self._workload)

        def force(adopt: Callable[[PolicyTable], None]) -> Force:
            found = KubePolicies(place.client, place.namespace, site.fleets, cluster.adopt, adopt)
            return Followed(found, self._watch.follow)

        return Seats(
            cluster=cluster,
            agents=agents,
            table=table_of(self._begin.policies),
            force=force,
            archive=archive,
            events=events.take,
            ticked=lambda tick: cluster.lend(lent.take(tick)),
            unready=self._unready,
            pinned=lambda: self._watch.paused,
            conditions=self._conditions,
            lowering_refused=cluster.lowering_refused,
            reader=self._policies,
        )

    def _reader(self, place: Place) -> ConfigMapReader | None:
        """Return what reads the policies, where a ConfigMap holds them."""
        options = self._begin.options.kubernetes
        if options is None or options.policies is None:
            return None
        return ConfigMapReader(config_map(place.client, options.policies, place.namespace), PolicyReader(()))

    def _post(self, site: Site) -> Post:
        place, cluster = site.place, self._cluster
        writer = NodeWriter(
            Writing(place.client), place.through.housekeeping, self._begin.clock.wall, cluster.nodes.learn
        )
        return Post(
            nodes=cluster.nodes,
            reports=self._reports,
            writer=writer,
            limits=lambda: self.parts.controller.coming.breaker,
            observed=self._nodes_observed,
            spared=self._nodes_spared,
            writes=self._writes,
            tell=self._tell,
            record=self.parts.ports.events.record,
            wall=self._begin.clock.wall,
        )

    def _device_post(self, site: Site) -> DevicePost:
        place, cluster = site.place, self._cluster
        return DevicePost(
            taints=DeviceTaints(Writing(place.client), place.through.housekeeping),
            reports=self._reports,
            spared=lambda names: self._nodes_spared(names) - self._nodes_observed(names),
            limits=lambda: self.parts.controller.coming.breaker,
            writes=self._writes,
            tell=self._tell,
            record=self.parts.ports.events.record,
            fence=cluster.fence,
            wall=self._begin.clock.wall,
        )

    def _counted(self) -> Marked | None:
        plan, devices = self._marking.plan, self._devices
        if plan is None or not self._role.leads:
            return None
        of_gpus = devices.plan
        return Marked(
            nodes=len(self._marking.excluded),
            tripped=plan.admission.tripped or (of_gpus is not None and of_gpus.admission.tripped),
            gpus=len(devices.fenced),
            nameless=0 if of_gpus is None else len(of_gpus.nameless),
        )

    # ------------------------------------------------------------ what nodes say

    def _heed_nodes(self) -> None:
        """Take what nodes say now: of GPUs for seats, and of nodes for their marks."""
        self._cluster.heed(self.parts.controller.coming.heeded)
        self._cluster.judge(self._reports.gpus)
        self._marking.changed()
        self._devices.changed()

    async def _age_nodes(self) -> None:
        """Let time pass over what nodes said."""
        while True:
            self._heed_nodes()
            await asyncio.sleep(_AGE_SECONDS)

    def _writes(self) -> bool:
        """Whether anything may be written: some fleet isn't only observed."""
        return any(not fleet.observe for fleet in self._cluster.fleets.values())

    def _nodes_observed(self, names: Collection[str]) -> set[str]:
        """Return the nodes that are only told of: all fleets observe that have seats there, or all fleets where none has."""
        fleets, observed = self._cluster.fleets, self.parts.controller.coming.health_observed
        return self._nodes_of(
            names, {name for name, fleet in fleets.items() if name in observed or fleet.observe}
        )

    def _nodes_spared(self, names: Collection[str]) -> set[str]:
        """Return the nodes that keep their other GPUs: all fleets want it so that have seats there, or all where none has."""
        return self._nodes_of(names, self.parts.controller.coming.gpus_apart)

    def _nodes_of(self, names: Collection[str], only: AbstractSet[FleetName]) -> set[str]:
        """Return the nodes on which only some fleets have seats; those where none has any, if there are no other fleets."""
        fleets = self._cluster.fleets
        if fleets and not only:
            return set()
        here: dict[str, set[FleetName]] = {}
        for seat in self._cluster.seats():
            if seat.fleet in fleets:
                here.setdefault(seat.node, set()).add(seat.fleet)
        return {name for name in names if here.get(name, fleets.keys()) <= only}

    # ------------------------------------------------------------ what others ask of it

    def _tell(self, event: Event) -> None:
        if self._role.leads:
            self._cluster.recorder.tell(event)

    def _workload(self, name: str) -> Subject | None:
        fleet = self._cluster.fleets.get(FleetName(name))
        if fleet is None:
            return None
        return Subject.of(fleet.target.kind, fleet.target.namespace, fleet.target.name)

    def _replicas(self, fleet: FleetName) -> int | None:
        try:
            return self._cluster.replicas(fleet) if self._cluster.synced else None
        except NotFound:
            return None

    def _homes(self) -> Mapping[PolicyName, FleetName]:
        """Return the fleet that each policy names first."""
        policies = self.parts.controller.coming.policies
        return {policy.name: policy.fleets[0].fleet for policy in policies if policy.fleets}

    def _conditions(self) -> Sequence[Mapping[str, str]]:
        of_cluster = [
            {"fleet": fleet, "type": str(each.type), "reason": str(each.type), "message": each.message}
            for fleet, conditions in self._cluster.conditions.items()
            for each in conditions
        ]
        return [*of_cluster, *self._watch.conditions()]

    def _unready(self) -> str:
        """Say why nothing can be answered yet: once there was something, it ages, and the replica stays ready."""
        if self._role.has_led or self._follower.heard:
            return ""
        return "stands by, and has not heard the leader yet"

    # ------------------------------------------------------------ running

    async def serve(self, stack: AsyncExitStack) -> None:
        """Answer, follow and lead, until a signal asks for the end."""
        begin, parts = self._begin, self.parts
        headers = {"Authorization": f"Bearer {begin.options.token}"}
        following = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
        await stack.enter_async_context(parts.listening())
        log.info(
            "controller listens",
            url=url_of(begin.listener),
            advertised=self._me.address,
            policies=begin.policies.short_hash,
        )
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(part) for part in (*parts.standing(), *self.replicating(following))]
            await begin.stop.wait()
            log.info("controller ends; residents stay as they are", led=self._role.leads)
            await parts.end_actions(self._me.identity)
            for task in running:
                task.cancel()

    def replicating(self, following: aiohttp.ClientSession) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what runs beside what every controller runs, for as long as the process does.

        Args:
            following: reaches other replicas, and shows them the token.
        """
        yield self._follower.run(following)
        yield self._watch.run()
        yield self._age_nodes()
        yield self._stand()
        if self._policies is not None:
            yield self._policies.run()

    async def _stand(self) -> None:
        """Stand for election, once the cluster has been seen: who leads acts at once."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._elector.look_on())
            await self._cluster.wait_synced()
            looking.cancel()
        await self._elector.run(self._lead)

    async def _lead(self, leadership: Leadership) -> None:
        """Lead for one term; cancelled when it is over."""
        term, parts = leadership.term, self.parts
        ports = replace(parts.ports, agents=LedAgents(parts.ports.agents, leadership))
        with self._role.of(leadership), self._feed.of(term):
            async with self._cluster.leading(leadership), asyncio.TaskGroup() as tasks:
                tasks.create_task(give_up_when_superseded(self._cluster, term))
                tasks.create_task(parts.lead(term, ports))
                tasks.create_task(self._marking.run())
                tasks.create_task(self._devices.run())
                self._watch.lead()
