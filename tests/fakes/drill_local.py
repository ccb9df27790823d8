"""A stand-in for `emberpool local`: same command line, files and HTTP; engines are idle processes and tokens come from a clock.

It has queues, seats and promotions of its own, so that a drill against it sees bursts, switches of state and faults. It is run
as a process: `python drill_local.py [--behave HOW] --policy FILE …`.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from ruamel.yaml import YAML

PROMOTION_SECONDS = 0.03
SEAT_START_SECONDS = 1.5
DEMOTE_AFTER_SECONDS = 1.0


@dataclass
class Resident:
    policy: str
    process: asyncio.subprocess.Process
    in_flight: int = 0


@dataclass
class Seat:
    name: str
    fleet: str
    residents: dict[str, Resident] = field(default_factory=dict)
    serving: str | None = None
    value: str = "Starting"


@dataclass
class Policy:
    name: str
    fleet: str
    target: int
    most: int
    models: list[str]
    token_seconds: float
    waiting: list[asyncio.Future] = field(default_factory=list)
    waiting_since: list[float] = field(default_factory=list)
    quiet_since: float = field(default_factory=time.monotonic)
    unclaimed: str | None = None


Place = tuple[Seat, Resident, bool]


class Local:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.state = Path(options.state_dir)
        self.events = (self.state / "events.jsonl").open("a", buffering=1)
        documents = [one for one in YAML(typ="safe").load_all(Path(options.policy)) if one]
        self.fleets = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "Fleet"}
        self.policies = {
            one["metadata"]["name"]: self._policy(one) for one in documents if one["kind"] == "ScalingPolicy"
        }
        self.seats: list[Seat] = []
        self.numbers = itertools.count()
        self.growing: set[str] = set()
        self.group: asyncio.TaskGroup

    @staticmethod
    def _policy(document: dict) -> Policy:
        spec, name = document["spec"], document["metadata"]["name"]
        share = spec["fleets"][0]
        most = spec.get("serving", {}).get("max", 99)
        flags = spec["engine"]["args"]
        pace = float(flags[flags.index("--max-tokens-per-second") + 1])
        return Policy(
            name, share["name"], share["targetInFlight"], most, spec.get("models", [name]), 1 / pace
        )

    def event(self, kind: str, **facts: object) -> None:
        self.events.write(json.dumps({"at": time.time(), "kind": kind, **facts}) + "\n")

    def set_value(self, seat: Seat, value: str) -> None:
        seat.value = value
        self.event("seat", seat=seat.name, fleet=seat.fleet, value=value, serves=seat.serving)

    # -------------------------------------------------------------- supply

    async def start_seat(self, fleet: str, serves: str | None) -> Seat:
        seat = Seat(f"{fleet}-{next(self.numbers)}", fleet)
        self.seats.append(seat)
        self.set_value(seat, "Starting")
        for policy in self.policies.values():
            if policy.fleet == fleet:
                await self.start_resident(seat, policy.name)
        seat.serving = serves
        self.set_value(seat, "Serving" if serves else "Spare")
        return seat

    async def start_resident(self, seat: Seat, policy: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import signal; signal.pause()", stdin=asyncio.subprocess.DEVNULL
        )
        seat.residents[policy] = Resident(policy, process)
        self.event(
            "resident", seat=seat.name, policy=policy, state="Paused", failure="", pid=process.pid, phases={}
        )
        self.group.create_task(self.nurse(seat, policy, process))

    async def nurse(self, seat: Seat, policy: str, process: asyncio.subprocess.Process) -> None:
        """Replace a killed engine."""
        await process.wait()
        self.event(
            "resident",
            seat=seat.name,
            policy=policy,
            state="Failed",
            failure="died",
            pid=process.pid,
            phases={},
        )
        if seat.serving == policy:
            seat.serving = None
            self.set_value(seat, "Starting")
        await asyncio.sleep(0.3)
        await self.start_resident(seat, policy)
        self.set_value(seat, "Serving" if seat.serving else "Spare")
        self.wake(self.policies[policy])

    def capacity(self, policy: Policy) -> int:
        return policy.target * sum(seat.serving == policy.name for seat in self.seats)

    async def scale(self) -> None:
        """Promote for queues, grow where nothing is spare, demote what is idle; and report loads."""
        while True:
            await asyncio.sleep(0.02)
            for policy in self.policies.values():
                serving = sum(seat.serving == policy.name for seat in self.seats)
                in_flight = self.in_flight(policy)
                if policy.waiting and serving < policy.most:
                    await self.add(policy)
                if policy.waiting or in_flight > policy.target * max(0, serving - 1):
                    policy.quiet_since = time.monotonic()
                elif serving > 1 and time.monotonic() - policy.quiet_since > DEMOTE_AFTER_SECONDS:
                    self.demote(policy)
                self.report(policy)

    async def add(self, policy: Policy) -> None:
        spare = next(
            (seat for seat in self.seats if seat.value == "Spare" and policy.name in seat.residents), None
        )
        if spare is not None:
            await self.promote(policy, spare)
        elif policy.name not in self.growing and self.may_grow(policy.fleet):
            self.growing.add(policy.name)
            self.group.create_task(self.grow(policy))

    def may_grow(self, fleet: str) -> bool:
        mine = sum(seat.fleet == fleet for seat in self.seats)
        budget = self.options.seat_budget or sum(spec["maxSeats"] for spec in self.fleets.values())
        return mine < self.fleets[fleet]["maxSeats"] and len(self.seats) < budget

    async def grow(self, policy: Policy) -> None:
        seat = Seat(f"{policy.fleet}-{next(self.numbers)}", policy.fleet)
        self.seats.append(seat)
        self.set_value(seat, "Starting")
        await asyncio.sleep(SEAT_START_SECONDS)
        await self.start_resident(seat, policy.name)
        self.growing.discard(policy.name)
        await self.promote(policy, seat)

    async def promote(self, policy: Policy, seat: Seat) -> None:
        at = time.time()
        claim = f"claim-{next(self.numbers)}"
        seat.serving = None
        self.set_value(seat, "Promoting")
        await asyncio.sleep(PROMOTION_SECONDS)
        done = time.time()
        facts = {
            "claim": claim,
            "policy": policy.name,
            "fleet": seat.fleet,
            "seat": seat.name,
            "waiting": len(policy.waiting),
        }
        steps = {
            "sample": at,
            "decision": at + 0.001,
            "claimed": at + 0.003,
            "resumed": done - 0.006,
            "canary": done - 0.002,
        }
        self.event(
            "promotion",
            operation="Promote",
            outcome="Promoted",
            error="",
            rotation=done,
            phases={"resume": 0.01},
            **facts,
            **steps,
        )
        seat.serving = policy.name
        self.set_value(seat, "Serving")
        policy.unclaimed = claim
        self.wake(policy)

    def demote(self, policy: Policy) -> None:
        seat = next(seat for seat in reversed(self.seats) if seat.serving == policy.name)
        seat.serving = None
        policy.quiet_since = time.monotonic()
        self.event("demotion", claim="-", policy=policy.name, seat=seat.name, outcome="Paused", phases={})
        self.set_value(seat, "Spare")

    def report(self, policy: Policy) -> None:
        self.event("load", **self.policy_item(policy))

    def policy_item(self, policy: Policy) -> dict:
        oldest = time.monotonic() - policy.waiting_since[0] if policy.waiting_since else 0.0
        return {
            "policy": policy.name,
            "queued": len(policy.waiting),
            "inFlight": self.in_flight(policy),
            "oldestWaitSeconds": oldest,
            "demand": len(policy.waiting) + self.in_flight(policy),
            "capacity": self.capacity(policy),
            "mode": "Stable",
        }

    def in_flight(self, policy: Policy) -> int:
        return sum(
            seat.residents[policy.name].in_flight for seat in self.seats if policy.name in seat.residents
        )

    # -------------------------------------------------------------- gateway

    def free(self, policy: Policy) -> tuple[Seat, Resident] | None:
        candidates = [
            (seat.residents[policy.name].in_flight, index, seat)
            for index, seat in enumerate(self.seats)
            if seat.serving == policy.name and seat.residents[policy.name].in_flight < policy.target
        ]
        if not candidates:
            return None
        _, _, seat = min(candidates, key=lambda one: one[:2])
        return seat, seat.residents[policy.name]

    def wake(self, policy: Policy) -> None:
        while policy.waiting and (found := self.free(policy)) is not None:
            future = policy.waiting.pop(0)
            policy.waiting_since.pop(0)
            if not future.done():
                found[1].in_flight += 1
                future.set_result(found)

    async def admit(self, policy: Policy) -> Place:
        found = self.free(policy)
        if found is not None and not policy.waiting:
            found[1].in_flight += 1
            return *found, False
        future = asyncio.get_running_loop().create_future()
        policy.waiting.append(future)
        policy.waiting_since.append(time.monotonic())
        return *(await future), True

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        policy = next((one for one in self.policies.values() if body["model"] in one.models), None)
        if policy is None:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        if self.options.behave == "Refuse":
            return web.json_response({"error": {"message": "full"}}, status=503)
        seat, resident, waited = await self.admit(policy)
        try:
            return await self.answer(request, body, policy, (seat, resident, waited))
        finally:
            resident.in_flight -= 1
            self.wake(policy)

    async def answer(
        self, request: web.Request, body: dict, policy: Policy, place: Place
    ) -> web.StreamResponse:
        seat, resident, waited = place
        claim, policy.unclaimed = policy.unclaimed, None
        dispatched = time.time()
        tokens = body["max_tokens"] - (1 if self.options.behave == "Short" else 0)
        if not body["stream"]:
            await asyncio.sleep(policy.token_seconds * tokens)
            return web.json_response(
                {"choices": [{"text": "x" * tokens}], "usage": {"completion_tokens": tokens}}
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(tokens):
            await asyncio.sleep(policy.token_seconds if number else 0.005)
            if resident.process.returncode is not None:
                await self.send(response, {"error": {"message": "the engine died", "code": "UpstreamLost"}})
                return response
            await self.send(response, {"choices": [{"text": "x", "token_ids": [120]}]})
            if number == 0 and claim is not None:
                facts = {
                    "claim": claim,
                    "policy": policy.name,
                    "seat": seat.name,
                    "dispatched": dispatched,
                    "waited": waited,
                }
                self.event("firstToken", **{**facts, "at": time.time()})
        await self.send(response, {"choices": [], "usage": {"completion_tokens": tokens}})
        await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    async def send(response: web.StreamResponse, data: dict) -> None:
        await response.write(f"data: {json.dumps(data)}\n\n".encode())

    # -------------------------------------------------------------- controller

    async def status(self, _: web.Request) -> web.Response:
        ready = all(any(seat.serving == name for seat in self.seats) for name in self.policies)
        return web.json_response(
            {"ready": ready, "waitingFor": [] if ready else ["seats to start"], "version": "0"}
        )

    async def list_policies(self, _: web.Request) -> web.Response:
        items = [{"name": one.name, **self.policy_item(one)} for one in self.policies.values()]
        return web.json_response({"items": items})

    async def list_seats(self, _: web.Request) -> web.Response:
        return web.json_response({"items": [self.seat_item(seat) for seat in self.seats]})

    @staticmethod
    def seat_item(seat: Seat) -> dict:
        residents = [
            {"policy": one.policy, "pid": one.process.pid, "inFlight": one.in_flight, "state": "Serving"}
            for one in seat.residents.values()
        ]
        serving = [seat.serving] if seat.serving else []
        return {
            "name": seat.name,
            "fleet": seat.fleet,
            "value": seat.value,
            "serving": serving,
            "residents": residents,
        }

    # -------------------------------------------------------------- life

    async def run(self) -> None:
        behave = self.options.behave
        sys.stdout.write("stand-in starting\n")
        if behave == "DieAtStart":
            sys.exit("no such checkpoint")
        stop = asyncio.Event()
        if behave == "IgnoreTerm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        try:
            await self.serve(stop)
        finally:
            if behave != "Orphans":
                for seat in self.seats:
                    for resident in seat.residents.values():
                        with suppress(ProcessLookupError):
                            resident.process.kill()

    async def serve(self, stop: asyncio.Event) -> None:
        gateway = await self.listen([web.post("/v1/completions", self.complete)])
        controller = await self.listen(
            [
                web.get("/v1/status", self.status),
                web.get("/v1/policies", self.list_policies),
                web.get("/v1/seats", self.list_seats),
            ],
            self.options.controller_port,
        )
        (self.state / "local.json").write_text(
            json.dumps({"pid": 0, "gateway": gateway, "controller": controller})
        )
        async with asyncio.TaskGroup() as self.group:
            scaling = self.group.create_task(self.start_and_scale())
            if self.options.behave == "DieInMiddle":
                self.group.create_task(self.die_later())
            await stop.wait()
            scaling.cancel()
            raise SystemExit(0)

    async def start_and_scale(self) -> None:
        for policy in self.policies.values():
            await self.start_seat(policy.fleet, policy.name)
        for name, spec in self.fleets.items():
            for _ in range(spec.get("spare", {}).get("min", 0)):
                await self.start_seat(name, None)
        await self.scale()

    @staticmethod
    async def die_later() -> None:
        await asyncio.sleep(2.0)
        sys.stdout.write("out of memory\n")
        sys.stdout.flush()
        os._exit(3)

    @staticmethod
    async def listen(routes: list[web.RouteDef], port: int = 0) -> str:
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--behave", default="Well")
    parser.add_argument("--policy", required=True)
    parser.add_argument("--checkpoint", action="append", default=[])
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--gateway-port", type=int)
    parser.add_argument("--controller-port", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seats-per-gpu", type=int, default=1)
    parser.add_argument("--seat-budget", type=int)
    parser.add_argument("--zygote", action=argparse.BooleanOptionalAction)
    asyncio.run(Local(parser.parse_args()).run())


if __name__ == "__main__":
    main()
