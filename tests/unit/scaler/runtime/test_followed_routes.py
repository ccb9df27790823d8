"""What a gateway makes of the tables that it follows."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import Endpoint, EndpointKey, PolicyRoutes
from scaler.gateway.settings import GatewaySettings
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.published_routes import PublishedTable
from warmpool.seats import PolicyName, SeatName

CHAT, CODE = PolicyName("chat"), PolicyName("code")


def routes(policy: PolicyName, *numbers: int) -> PolicyRoutes:
    endpoints = tuple(
        Endpoint(seat=SeatName(f"s{n}"), uid=f"u{n}", policy=policy, url=f"http://h:{n}", slots=8)
        for n in numbers
    )
    return PolicyRoutes(models=(policy,), endpoints=endpoints)


TABLE = PublishedTable(
    term=1, version=1, gateways=("gw-1",), policies={CHAT: routes(CHAT, 1), CODE: routes(CODE, 2)}
)


class Stand:
    def __init__(self) -> None:
        self.gateway = Gateway(GatewaySettings(), SilentObserver(), CollectorRegistry())
        self.listed: dict[PolicyName, list[EndpointKey]] = {}
        self.followed = FollowedRoutes(self.gateway, "gw-1", self._listed)

    def _listed(self, policy: PolicyName, keys: object) -> None:
        self.listed[policy] = list(keys)  # type: ignore[call-overload]

    def endpoints(self) -> dict[str, list[tuple[str, int]]]:
        return {
            name: [(each.seat, each.slots) for each in found.endpoints]
            for name, found in self.gateway.routes.policies.items()
        }


@pytest.fixture
def stand() -> Stand:
    made = Stand()
    made.followed.take(TABLE, None)
    return made


def test_a_change_of_one_policy_touches_no_other(stand: Stand) -> None:
    other = stand.gateway.routes.policies[CODE]
    stand.listed.clear()
    stand.followed.take(replace(TABLE, policies={CHAT: routes(CHAT, 1, 3), CODE: routes(CODE, 2)}), {CHAT})
    assert stand.endpoints() == {"chat": [("s1", 8), ("s3", 8)], "code": [("s2", 8)]}
    assert stand.gateway.routes.policies[CODE] is other
    assert list(stand.listed) == [CHAT]


def test_a_policy_that_is_gone_goes(stand: Stand) -> None:
    stand.followed.take(replace(TABLE, policies={CHAT: routes(CHAT, 1)}), {CODE})
    assert stand.endpoints() == {"chat": [("s1", 8)]}
    assert stand.listed[CODE] == []


def test_another_number_of_gateways_changes_all_shares(stand: Stand) -> None:
    stand.followed.take(replace(TABLE, gateways=("gw-1", "gw-2")), set())
    assert stand.endpoints() == {"chat": [("s1", 4)], "code": [("s2", 4)]}
    stand.followed.take(replace(TABLE, gateways=None), None)
    assert stand.endpoints() == {"chat": [("s1", 4)], "code": [("s2", 4)]}, "the last known number holds"


def test_a_controller_that_sees_nothing_takes_no_endpoint(stand: Stand) -> None:
    fresh = PolicyName("fresh")
    blind = replace(TABLE, term=2, policies={CHAT: routes(CHAT), fresh: routes(fresh)}, blind=True)
    stand.followed.take(blind, None)
    assert stand.endpoints() == {"chat": [("s1", 8)], "fresh": []}
    stand.followed.take(replace(blind, version=2), set())
    assert stand.endpoints() == {"chat": [("s1", 8)], "fresh": []}
    stand.followed.take(replace(blind, version=3, blind=False), set())
    assert stand.endpoints() == {"chat": [], "fresh": []}


def test_what_can_t_be_used_leaves_everything(stand: Stand) -> None:
    twice = PolicyRoutes(models=("chat",))
    with pytest.raises(ValueError, match="claimed by policies"):
        stand.followed.take(
            replace(TABLE, version=2, gateways=("gw-1", "gw-2"), policies={CHAT: routes(CHAT), CODE: twice}),
            {CODE},
        )
    assert stand.endpoints() == {"chat": [("s1", 8)], "code": [("s2", 8)]}
    assert (stand.followed.gateways, stand.followed.state()["version"]) == (("gw-1",), 1)
