"""What node agents say of their GPUs comes in here; what is known of nodes goes out, and what people order of them is taken.

Every replica hears all node agents; the leader alone marks nodes, and answers people. A node agent that remembers nothing gets what is
kept of its node first, and is heard when it knows that.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiohttp import web

from scaler.cluster.kube.device_taints import DeviceMarking
from scaler.cluster.kube.hand_marks import HandMark, NodeMark
from scaler.cluster.kube.marking import NodeMarking
from scaler.cluster.kube.times import seconds_text
from scaler.cluster.node_reports import NodeReports
from scaler.errors import ClusterError, Conflict, NotFound
from scaler.runtime.api import Intake, authorized, unauthorized
from warmpool.errors import BadOrder
from warmpool.nodehealth.breaker import Admission
from warmpool.nodehealth.verdicts import NodeVerdict
from warmpool.nodehealth.wire import node_verdict_to_json

PATH: Final = "/v1/nodes"
_MOST_TEXT: Final = 1000


class NodesApi:
    """Routes.

    Args:
        reports: take what node agents say.
        marking: carries out orders.
        devices: marks single GPUs.
        intake: who may report.
        wall: Unix seconds.
        changed: is called when something new was said.
    """

    def __init__(
        self,
        reports: NodeReports,
        marking: NodeMarking,
        devices: DeviceMarking,
        intake: Intake,
        wall: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._reports = reports
        self._marking = marking
        self._devices = devices
        self._intake = intake
        self._wall = wall
        self._changed = changed

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post(PATH, self._report),
            web.get(PATH, self._nodes),
            web.post(PATH + "/{name}/{verb:exclude|readmit}", self._order),
        ]

    async def _report(self, request: web.Request) -> web.Response:
        if not self._intake.takes(request):
            return unauthorized()
        try:
            report = await _object(request)
            asks = report.get("asks") is True
            kept = self._marking.kept(str(report.get("node", ""))) if asks else ""
            if kept is None:
                return _refused(503, "Starting", "the cluster's nodes aren't known yet")
            news = not kept and self._reports.take(report)
        except BadOrder as error:
            return _refused(400, "BadReport", str(error))
        if news:
            self._changed()
        return web.json_response({"kept": kept}) if asks else web.Response(status=204)

    async def _nodes(self, _: web.Request) -> web.Response:
        plan, excluded = self._marking.plan, set(self._marking.excluded)
        waiting = frozenset() if plan is None else frozenset(plan.admission.waiting)
        verdicts, marks = self._reports.verdicts, self._marking.orders
        items = [
            {
                "name": name,
                "excluded": name in excluded,
                "waiting": name in waiting,
                "mark": _mark_to_json(marks[name]) if name in marks else None,
                **self._said(verdicts.get(name)),
            }
            for name in sorted(verdicts.keys() | marks.keys())
        ]
        of_gpus = self._devices.plan
        breakers = {
            "breaker": None if plan is None else _told(plan.admission),
            "gpuBreaker": None if of_gpus is None else _told(of_gpus.admission),
        }
        return web.json_response({"items": items, **breakers})

    def _said(self, verdict: NodeVerdict | None) -> Mapping[str, Any]:
        """Return what is said of a node's GPUs, and how they stand; nothing of a node that says nothing."""
        if verdict is None:
            return {"gpuMarks": {}, "gpus": [], "reason": "nothing was heard of it lately"}
        return {"gpuMarks": self._gpu_marks(verdict), **node_verdict_to_json(verdict)}

    def _gpu_marks(self, verdict: NodeVerdict) -> Mapping[str, str]:
        """Return how those of a node's GPUs stand that are to be excluded by themselves, by UUID."""
        standing = {gpu.uuid: self._devices.standing(gpu.uuid) for gpu in verdict.gpus}
        return {uuid: str(each) for uuid, each in standing.items() if each is not None}

    async def _order(self, request: web.Request) -> web.Response:
        if not authorized(request, self._intake.token):
            return unauthorized()
        name = request.match_info["name"]
        try:
            order = self._read(await _object(request), excluded=request.match_info["verb"] == "exclude")
            await self._marking.order(name, order)
        except BadOrder as error:
            return _refused(400, "BadOrder", str(error))
        except NotFound as error:
            return _refused(404, "NotFound", str(error))
        except Conflict as error:
            return _refused(409, "Conflict", str(error))
        except ClusterError as error:
            return _refused(503, "Unreachable", str(error))
        return web.json_response({"name": name, "excluded": order.excluded, "until": order.until})

    def _read(self, body: Mapping[str, Any], *, excluded: bool) -> HandMark:
        """Read an order.

        Raises:
            BadOrder: it is none.
        """
        texts = {key: body.get(key) for key in ("actor", "reason")}
        for key, text in texts.items():
            if not isinstance(text, str) or not 0 < len(text.strip()) <= _MOST_TEXT:
                raise BadOrder(f"{key}: a text of 1 to {_MOST_TEXT} characters is needed")
        until, now = body.get("until"), self._wall()
        if until is not None and (
            not isinstance(until, int | float)
            or isinstance(until, bool)
            or not math.isfinite(until)
            or until <= now
        ):
            raise BadOrder("until: Unix seconds in the future")
        return HandMark(
            excluded=excluded,
            actor=str(texts["actor"]),
            reason=str(texts["reason"]),
            since=now,
            until=None if until is None else float(until),
        )


def _mark_to_json(mark: NodeMark) -> Mapping[str, Any]:
    return {
        "excluded": mark.excluded,
        "reason": mark.reason,
        "since": seconds_text(mark.since),
        "actor": mark.actor,
        "until": None if mark.until is None else seconds_text(mark.until),
    }


def _told(admission: Admission) -> Mapping[str, Any]:
    """Return what a breaker says, as it is told."""
    return {
        "tripped": admission.tripped,
        "allowed": admission.allowed,
        "used": admission.used,
        "freeAt": admission.free_at,
    }


async def _object(request: web.Request) -> Mapping[str, Any]:
    """Read a body.

    Raises:
        BadOrder: it is no JSON object.
    """
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise BadOrder(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadOrder("the body is no JSON object")
    return body


def _refused(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)
