"""What controllers alone know, asked of one by its address or of a cluster's through its API server."""

from collections.abc import Callable
from typing import NoReturn, TypeVar

from scaler.cli.answers import parse
from scaler.cli.client import ORDERS, Controller, Items, Json, Show, Source, ask_again, items_of
from scaler.cli.failures import Failed, Unasked
from scaler.cli.kube_options import AtUrl, Target
from scaler.cli.show import asked

Page = TypeVar("Page")


def asked_alone(target: Target) -> Source:
    """Return whom to ask for what pods don't tell.

    Raises:
        UserError: a controller's address is no URL.
    """
    source = asked(target)
    return source if isinstance(source, Controller) else _Told(source)


def page(target: Target, path: str, read: Callable[[Json], Page]) -> tuple[Json, Page]:
    """Return what a controller says about something, as it came and as it is read, to whom exit code 2 means that nobody was asked.

    Raises:
        Unasked: nobody answers, or something else does.
    """
    try:
        body = asked(target).ask(path)
        return body, parse(read, body)
    except Failed as error:
        raise Unasked(str(error), hint=error.hint) from error


def called(target: Target) -> str:
    """Return what whoever is asked is called in a sentence."""
    return f"the controller at {target.url}" if isinstance(target, AtUrl) else "the cluster's controller"


class _Told:
    """A cluster's controller, without what the API server would add."""

    several_namespaces = False

    def __init__(self, source: Source) -> None:
        self._source = source

    def items(self, plural: str) -> Items:
        """See `Source.items`."""
        found = items_of(self.ask(f"/v1/{plural}"))
        if found is None:
            raise Failed(
                f"the cluster's controller answers /v1/{plural} without items", hint="is it another version?"
            )
        return found

    def ask(self, path: str, namespace: str = "") -> Json:
        """See `Source.ask`."""
        return self._source.ask(path, namespace)

    def follow(self, plural: str, show: Show) -> NoReturn:
        """See `Source.follow`; a controller that stops answering is waited for."""
        ask_again(lambda: self.items(plural), show)

    def order(self, body: Json, token: str, path: str = ORDERS) -> tuple[int, object]:
        """See `Source.order`."""
        return self._source.order(body, token, path)
