"""What a set says and this version doesn't act on yet: told here, too, so that no figure is trusted in vain."""

from collections.abc import Iterator

from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import Finding, Place, Severity
from scaler.policy.lint.subject import Subject
from scaler.policy.unbuilt import not_acted_on


def unbuilt_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is written and not acted on (`scaler.policy.unbuilt`), for each place at which it is written."""
    policies = subject.policies
    for item in (*policies.fleets.values(), *policies.policies.values(), *policies.settings):
        written = item.model_dump(mode="json", by_alias=True, exclude_unset=True)
        for found in not_acted_on(written):
            yield Finding(
                code=Code.NOT_ACTED_ON,
                severity=Severity.WARNING,
                place=Place.of(item, *found.path),
                message=found.message,
                hint="it may stay for a version that acts on it; until then reckon without it",
            )
