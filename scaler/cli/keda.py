"""`emberpool keda`: ask the external scaler as KEDA does, and see what becomes of the answers."""

import asyncio
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from scaler.cli import keda_findings
from scaler.cli.failures import FAILED, OK, Unasked
from scaler.cli.human import duration
from scaler.cli.options import examples, group, path_of
from scaler.cli.output import as_json, as_yaml, emit, table
from scaler.cli.policy_files import read_documents, read_set
from scaler.errors import UserError
from scaler.keda.findings import Finding, Severity, check
from scaler.keda.forecast import Rules, at_an_answer, at_an_error, rules_of
from scaler.keda.intent import fleet_of, intent_of
from scaler.keda.objects import Hpa, OwnTrigger, ScaledObject, read_hpa, read_scaled_object

app = group("KEDA: the external scaler, asked as an operator asks it, and what sizes the fleets.")
keda_findings.register(app)

_PEM_HINT: Final = "PEM is wanted"
_LOCAL: Final = "127.0.0.1:6000"


class CheckOutput(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objects:
    """What was read from files."""

    scaled: ScaledObject | None
    hpa: Hpa | None

    @property
    def trigger(self) -> OwnTrigger | None:
        """The trigger that is asked for: the first of ours."""
        return self.scaled.own[0] if self.scaled is not None and self.scaled.own else None

    @property
    def replicas(self) -> int | None:
        """What the HPA says that there is; None where that isn't known."""
        return None if self.hpa is None else self.hpa.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Whom to ask, and for what."""

    address: str
    name: str
    namespace: str
    metadata: Mapping[str, str]
    pushes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pem:
    """Files of the client's side of TLS."""

    enabled: bool
    root: Path | None
    certificate: Path | None
    key: Path | None

    @property
    def used(self) -> bool:
        """Whether TLS is spoken."""
        return self.enabled or any((self.root, self.certificate, self.key))

    def check(self) -> None:
        """Check what gRPC would say nothing of, or abort the process for.

        Raises:
            UserError: a certificate comes without its key or the reverse, the two don't belong together, or there are no roots.
        """
        if (self.certificate is None) != (self.key is None):
            given, missing = "--client-cert", "--client-key"
            if self.certificate is None:
                given, missing = missing, given
            raise UserError(
                f"{given} needs {missing}", hint="mTLS shows a certificate and proves it by its key"
            )
        for path in (self.root, self.certificate, self.key):
            _bytes(path)  # what can't be read is said of the file that it is
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.root is not None:
                context.load_verify_locations(cafile=self.root)
        except (ssl.SSLError, ValueError) as error:
            raise UserError(f"--ca-cert {self.root} holds no certificate", hint=_PEM_HINT) from error
        if self.root is not None and not context.cert_store_stats()["x509"]:
            raise UserError(f"--ca-cert {self.root} holds no certificate", hint=_PEM_HINT)
        if self.certificate is None:
            return
        try:
            context.load_cert_chain(self.certificate, self.key, password="")  # nobody is asked for one
        except (ssl.SSLError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise UserError(
                f"can't use --client-cert {self.certificate} with --client-key {self.key}: {why}",
                hint=f"{_PEM_HINT}, and the key must be the certificate's own, without a password",
            ) from error


def _file(what: str) -> Any:  # noqa: ANN401 - typer's own
    return typer.Option(metavar="FILE", parser=path_of, show_default=False, help=what)


@app.command(
    "check",
    epilog=examples(
        "emberpool keda check --address 127.0.0.1:6000 --fleet spares",
        "emberpool keda check --address emberpool-keda.emberpool:6000 --policy chat --value QueueDepth --replicas 2",
        "kubectl get scaledobject spares -o json > so.json; kubectl get hpa keda-hpa-spares -o json > hpa.json",
        "emberpool keda check --scaled-object so.json --hpa hpa.json --policies policies/ --address 127.0.0.1:6000",
        "emberpool keda check --scaled-object so.json --hpa hpa.json --policies policies/ -o json | jq .findings",
    ),
)
def check_command(  # noqa: PLR0917 - typer hands every option over by name
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where KEDA is answered; without it nobody is asked."),
    ] = None,
    fleet: Annotated[str | None, typer.Option(metavar="NAME", help="Ask for this fleet's numbers.")] = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="Ask for this policy's numbers.")] = None,
    value: Annotated[
        str | None,
        typer.Option(metavar="VALUE", help="Which number: Total, Serving, Spare, QueueDepth and others."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="More of the trigger's metadata; may be repeated."),
    ] = None,
    scaled_object: Annotated[Path | None, _file("The ScaledObject, as kubectl prints it.")] = None,
    hpa: Annotated[Path | None, _file("The HPA that KEDA made of it.")] = None,
    policies: Annotated[
        list[Path] | None,
        typer.Option(
            "--policies",
            "-f",
            metavar="PATH",
            help="Policy files: what the ScaledObject has to fit.",
            parser=path_of,
        ),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Replicas that the workload has at present.")
    ] = None,
    listen: Annotated[
        float, typer.Option(min=0, max=3600, metavar="SECONDS", help="How long to listen to the stream.")
    ] = 1.0,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS, with the system's roots.")] = False,
    ca_cert: Annotated[Path | None, _file("TLS: roots of the server's certificate, PEM.")] = None,
    client_cert: Annotated[Path | None, _file("mTLS: the certificate that is shown.")] = None,
    client_key: Annotated[Path | None, _file("mTLS: the key of that.")] = None,
    output: Annotated[
        CheckOutput, typer.Option("--output", "-o", help="How to print: table, json or yaml.")
    ] = CheckOutput.TABLE,
) -> int:
    """Make the calls that KEDA makes, in its order, and say what KEDA and the HPA would do with the answers.

    With a ScaledObject, as kubectl prints it, its trigger is what is asked for. It and the HPA that KEDA made of it are looked at
    beside the policies: metric, target, bounds, tolerance, fallback, and whether somebody has paused it. Exit code 0: all is well;
    1: a call failed or something is wrong; 2: nobody answers, or a file can't be used.
    """
    objects = _objects(scaled_object, hpa)
    given = _metadata(fleet, policy, value, metadata or ())
    question = _question(address, given, objects)
    have = objects.replicas if replicas is None else replicas
    findings = _findings(objects, policies, have)
    pem = _Pem(enabled=tls, root=ca_cert, certificate=client_cert, key=client_key)
    pem.check()
    answered = None if question is None else asyncio.run(_asked(question, pem, listen))
    if question is None and objects.scaled is None:
        raise UserError(
            "there is nothing to check", hint=f"--address {_LOCAL} --fleet NAME, or --scaled-object FILE"
        )
    rules = rules_of(objects.scaled, objects.hpa, findings)
    page = _page(question, answered, findings, _sentences(rules, answered, have))
    if output is CheckOutput.TABLE:
        _print(page)
    else:
        emit(as_json(page) if output is CheckOutput.JSON else as_yaml(page))
    wrong = any(call["wrong"] for call in page["calls"])
    return FAILED if wrong or any(each.severity is Severity.ERROR for each in findings) else OK


# ------------------------------------------------------------------ what is asked for


def _objects(scaled_object: Path | None, hpa: Path | None) -> _Objects:
    scaled = None if scaled_object is None else read_scaled_object(_document(scaled_object))
    made = None if hpa is None else read_hpa(_document(hpa))
    if made is not None and scaled is None:
        raise UserError("--hpa says little without the ScaledObject", hint="add --scaled-object FILE")
    return _Objects(scaled=scaled, hpa=made)


def _document(path: Path) -> Any:  # noqa: ANN401 - whatever stands in the file
    documents = read_documents([path])
    if len(documents) != 1:
        raise UserError(f"{path} holds {len(documents)} documents", hint="one object is wanted")
    return documents[0].data


def _metadata(
    fleet: str | None, policy: str | None, value: str | None, more: Sequence[str]
) -> dict[str, str]:
    given = {"fleet": fleet, "policy": policy, "value": value}
    metadata = {key: text for key, text in given.items() if text is not None}
    for each in more:
        key, equals, text = each.partition("=")
        if not key or not equals:
            raise UserError(
                f"--metadata {each!r} is not KEY=VALUE", hint="such as --metadata metricName=seats"
            )
        metadata[key] = text
    return metadata


def _question(address: str | None, given: Mapping[str, str], objects: _Objects) -> _Question | None:
    trigger, scaled = objects.trigger, objects.scaled
    if address is None:
        if given and scaled is None:
            raise UserError("nobody was named to ask", hint=f"--address {_LOCAL}")
        return None
    metadata = {**({} if trigger is None else trigger.metadata), **given}
    metadata.setdefault("scalerAddress", address)
    return _Question(
        address=address,
        name="check" if scaled is None else scaled.name,
        namespace="default" if scaled is None else scaled.namespace,
        metadata=metadata,
        pushes=trigger is None or trigger.pushes,
    )


def _findings(objects: _Objects, policies: list[Path] | None, running: int | None) -> tuple[Finding, ...]:
    if objects.scaled is None:
        return ()
    intent = None
    if policies:
        found, _ = read_set(policies)
        name = fleet_of(found, objects.scaled)
        intent = None if name is None else intent_of(found, name, running)
    return check(objects.scaled, objects.hpa, intent)


async def _asked(question: _Question, pem: _Pem, listen: float) -> Any:  # noqa: ANN401 - imported when it is needed
    from scaler.keda.client import NotReached, ScaledObject, Tls, connected  # noqa: PLC0415 - grpc is slow to import
    from scaler.keda.rehearsal import rehearse  # noqa: PLC0415
    from scaler.keda.unreached import why  # noqa: PLC0415

    tls = None
    if pem.used:
        tls = Tls(root=_bytes(pem.root), certificate=_bytes(pem.certificate), key=_bytes(pem.key))
    asker = ScaledObject(question.name, question.namespace, question.metadata)
    async with connected(question.address, tls) as client:
        try:
            await client.reach()
        except NotReached as error:
            found = await why(question.address, tls)
            raise Unasked(f"nobody answers at {question.address}: {found.reason}", hint=found.hint) from error
        return await rehearse(client, asker, pushes=question.pushes, listen=listen)


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}") from error


# ------------------------------------------------------------------ what is printed


def _sentences(rules: Rules, answered: Any, replicas: int | None) -> list[str]:  # noqa: ANN401 - as above
    if answered is None:
        return []
    if answered.value is None or answered.active is None:
        return list(at_an_error(rules))
    return list(at_an_answer(rules, answered.value, active=answered.active, replicas=replicas))


def _page(
    question: _Question | None,
    answered: Any,  # noqa: ANN401 - as above
    findings: Sequence[Finding],
    sentences: Sequence[str],
) -> dict[str, Any]:
    calls = () if answered is None else answered.calls
    return {
        "address": None if question is None else question.address,
        "metadata": {} if question is None else dict(question.metadata),
        "calls": [
            {
                "call": call.name,
                "answer": call.answer,
                "code": call.code,
                "message": call.message,
                "wrong": call.wrong,
                "milliseconds": round(call.seconds * 1000, 3),
            }
            for call in calls
        ],
        "value": None if answered is None else answered.value,
        "active": None if answered is None else answered.active,
        "forecast": list(sentences),
        "findings": [{key: str(text) for key, text in asdict(each).items()} for each in findings],
    }


def _print(page: Mapping[str, Any]) -> None:
    if page["calls"]:
        rows = [
            [
                call["call"],
                call["answer"] or f"{call['code']}: {call['message']}",
                duration(call["milliseconds"] / 1000),
            ]
            for call in page["calls"]
        ]
        emit(table(["CALL", "ANSWER", "TIME"], rows))
    for sentence in page["forecast"]:
        emit(sentence)
    for each in page["findings"]:
        emit(Text(f"{each['severity']}: {each['object']} {each['path']}: {each['message']} ({each['code']})"))
        if each["hint"]:
            emit(f"  hint: {each['hint']}")
    if not page["calls"] and not page["findings"]:
        emit("nothing found")
    sys.stdout.flush()
