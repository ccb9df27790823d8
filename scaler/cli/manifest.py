"""A manifest's file: read, given what a fleet's pod template must say, written, and what is said about it."""

import difflib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from scaler.cli.failures import OK
from scaler.cli.fleet_template import STDIN, TemplateOptions
from scaler.cli.output import as_json, emit, note
from scaler.errors import PolicyError, PolicyFault, UserError
from scaler.policy.compile import PolicySet, compile_contents
from scaler.policy.document import Document, documents_in, load_contents, parse_documents
from scaler.policy.template import Change, Starts, Template, Written, entry_of, template
from scaler.policy.wording import did_you_mean
from scaler.policy.workload import find_workload
from warmpool.seats import FleetName

_BOM: Final = "\ufeff"
"""What some editors begin a UTF-8 file with; it is kept."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A file with a workload.

    Attributes:
        name: what it is called in messages.
        text: what it holds, behind the byte order mark.
        bom: the byte order mark, if it has one.
        documents: what its text says.
    """

    name: str
    text: str
    bom: str
    documents: Sequence[Document]


def run(options: TemplateOptions) -> int:
    """Do what was asked for, and return the exit code.

    Raises:
        UserError: the policies, the manifest or the options can't be used, or the file can't be written.
    """
    manifest = _read_manifest(options.manifest)
    starts = _starts(options.commands, options.containers)
    wanted = _template(options.fleet, options.policies, manifest.documents, starts)
    changed = wanted.apply(manifest.text)
    written = options.in_place and not options.dry_run and changed != manifest.text
    if written:
        _write(options.manifest, manifest.bom + changed)
    _report(manifest.name, wanted)
    if options.json:
        emit(as_json(_as_data(options.fleet, manifest.name, wanted, written=written)))
    elif options.dry_run:
        sys.stdout.write(_diff(manifest.name, manifest.text, changed))
    elif not options.in_place:
        sys.stdout.write(manifest.bom + changed)
    return OK


def _template(fleet: str, paths: Sequence[Path], manifest: Sequence[Document], starts: Starts) -> Template:
    """Work out what the manifest needs.

    Raises:
        UserError: the policies, the manifest or the options can't be used.
    """
    contents = load_contents(paths)
    policies, documents = compile_contents(contents), documents_in(contents)
    name = FleetName(fleet)
    if name not in policies.fleets:
        known = f"known fleets: {', '.join(policies.fleets) or 'none'}"
        raise UserError(f"there is no fleet {fleet}", hint=did_you_mean(fleet, policies.fleets) or known)
    on_fleet = list(_on_fleet(name, policies, documents))
    if not on_fleet:
        raise UserError(
            f"no policy names fleet {fleet}: its seats would have no resident",
            hint="add the fleet to spec.fleets of a policy, and give the policy's file with --policy",
        )
    _known([*starts.commands, *starts.containers], fleet, [each.name for each in on_fleet])
    found = policies.fleets[name]
    return template(found, on_fleet, find_workload(found, manifest), starts)


def _on_fleet(fleet: FleetName, policies: PolicySet, documents: Sequence[Document]) -> Iterator[Written]:
    """Yield the policies that name a fleet, the most important first."""
    places = {
        document.data["metadata"]["name"]: document
        for document in documents
        if document.data["kind"] == "ScalingPolicy"
    }
    for name in policies.policies_on(fleet):
        yield Written(places[name], policies.policies[name])


def _known(given: Sequence[str], fleet: str, names: Sequence[str]) -> None:
    for policy in given:
        if policy not in names:
            hint = did_you_mean(policy, names) or f"policies on it: {', '.join(names)}"
            raise UserError(f"no policy {policy} is on fleet {fleet}", hint=hint)


def _starts(commands: Sequence[str], containers: Sequence[str]) -> Starts:
    """Read the options that say what starts a policy's engine.

    Raises:
        UserError: one of them isn't POLICY=…, or a policy has two.
    """
    words = {}
    for policy, line in _assignments("--command", commands).items():
        try:
            words[policy] = tuple(shlex.split(line))
        except ValueError as error:
            message = f"the command of {policy} can't be split into words: {error}"
            raise UserError(message, hint="quote it as a shell would read it") from error
        if not words[policy]:
            raise UserError(f"the command of {policy} is empty", hint="--command POLICY='PROGRAM ARGUMENTS'")
    named = _assignments("--container", containers)
    if both := sorted(words.keys() & named.keys()):
        message = f"{both[0]} has both a command and a container"
        raise UserError(message, hint="a container starts its engine by its own command: keep one of the two")
    return Starts(commands=words, containers=named)


def _assignments(option: str, given: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for text in given:
        policy, equals, value = text.partition("=")
        if not (policy and equals and value):
            raise UserError(f"{option} {text!r} names no policy and value", hint=f"{option} POLICY=VALUE")
        if policy in found:
            raise UserError(f"{option} is given twice for {policy}", hint="keep one of the two")
        found[policy] = value
    return found


# ------------------------------------------------------------------ files


def _read_manifest(path: Path) -> Manifest:
    """Read a manifest as text and as documents.

    Raises:
        UserError: it can't be read, or isn't YAML.
    """
    name = "stdin" if path == STDIN else str(path)
    try:
        raw = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        text = raw.decode("utf-8")
    except OSError as error:
        message = f"{name} can't be read: {error.strerror or error}"
        raise UserError(message, hint="name the file with the fleet's workload: --manifest FILE") from error
    except UnicodeDecodeError as error:
        message = f"{name} is not UTF-8: byte {error.start} can't be decoded"
        raise UserError(message, hint="save the file with the encoding UTF-8") from error
    bom = _BOM if text.startswith(_BOM) else ""
    text = text.removeprefix(_BOM)
    try:
        return Manifest(name, text, bom, parse_documents(text, name))
    except PolicyError as error:
        if "{{" not in text:
            raise
        raise PolicyError(tuple(_rendered_first(fault) for fault in error.faults)) from error


def _rendered_first(fault: PolicyFault) -> PolicyFault:
    hint = "this looks like a chart's template: render it first (helm template), and give that"
    return PolicyFault(
        file=fault.file,
        line=fault.line,
        column=fault.column,
        path=fault.path,
        message=fault.message,
        hint=hint,
    )


def _write(path: Path, text: str) -> None:
    """Replace a file in one step, so that nobody ever reads half of it; a symbolic link stays one.

    Raises:
        UserError: it can't be written.
    """
    target = path.resolve()
    try:
        with TemporaryDirectory(dir=target.parent, prefix=".emberpool-") as folder:
            temporary = Path(folder) / target.name
            temporary.write_bytes(text.encode("utf-8"))
            temporary.chmod(target.stat().st_mode)
            temporary.replace(target)
    except OSError as error:
        message = f"{path} can't be written: {error.strerror or error}"
        raise UserError(
            message, hint="without --in-place the manifest is printed, and the file stays as it is"
        ) from error


# ------------------------------------------------------------------ what was done


def _report(manifest: str, wanted: Template) -> None:
    """Say what changes, and what to know."""
    what = f"{manifest}: {wanted.workload.kind} {wanted.workload.name}:"
    for change in wanted.changes:
        for line in _in_words(change):
            note(f"{what} {line}")
    if not wanted.changes:
        note(f"{what} up to date")
    for each in wanted.notes:
        note(f"note: {each}")


def _in_words(change: Change) -> Iterator[str]:
    """Say in words what a change does; of the residents, what becomes of each."""
    if not isinstance(change.after, list):
        was = "" if change.before is None else f" (was {change.before})"
        yield f"{change.what}: {change.after}{was}"
        return
    before = {each["policy"]: each for each in change.before or ()}
    after = {each["policy"]: each for each in change.after}
    for policy, resident in after.items():
        if policy not in before:
            yield f"{change.what}: resident {policy} added ({_facts(resident)})"
        elif resident != before[policy]:
            yield f"{change.what}: resident {policy} changed ({_differences(before[policy], resident)})"
    for policy in before:
        if policy not in after:
            yield f"{change.what}: resident {policy} removed: its policy doesn't name the fleet"


def _facts(resident: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_shown(value)}" for key, value in resident.items() if key != "policy")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return ", ".join(f"{key} {_shown(before.get(key))} → {_shown(after.get(key))}" for key in keys)


def _shown(value: object) -> str:
    match value:
        case None:
            return "none"
        case list():
            return shlex.join(map(str, value))
        case _:
            return str(value)


def _as_data(fleet: str, manifest: str, wanted: Template, *, written: bool) -> dict[str, Any]:
    """Return what was done, for machines."""
    workload = wanted.workload
    return {
        "fleet": fleet,
        "manifest": manifest,
        "workload": {
            "kind": workload.kind,
            "name": workload.name,
            "line": workload.document.position(("kind",))[0],
        },
        "written": written,
        "changes": [
            {"path": list(change.edit.path), "before": change.before, "after": change.after}
            for change in wanted.changes
        ],
        "residents": [entry_of(each) for each in wanted.residents],
        "notes": list(wanted.notes),
    }


def _diff(name: str, before: str, after: str) -> str:
    """Return the change as a unified diff, which `patch` takes; empty where there is none."""
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: str) -> list[str]:
    """Split at line feeds alone, as `patch` does; `str.splitlines` knows ten other ends of lines."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
