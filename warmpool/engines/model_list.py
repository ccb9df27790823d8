"""What an engine's list of models says of the longest sequence that it takes: vLLM's, SGLang's and our own tell it there."""

from warmpool.engines.deadline import Deadline
from warmpool.engines.transport import Transport
from warmpool.errors import EngineUnfit

_MODELS = "/v1/models"


async def longest_sequence(transport: Transport, deadline: Deadline) -> int | None:
    """Return how many tokens a sequence may have, prompt and answer together; None if the engine doesn't say it.

    Raises:
        EngineError: nothing comes back; what comes back otherwise than it should is no reason to fail.
    """
    answer = await transport.get(_MODELS, deadline)
    if not answer.ok:
        return None
    try:
        told = answer.json()
    except EngineUnfit:
        return None
    return _longest(told.get("data"))


def _longest(data: object) -> int | None:
    """Return the least that one of the models is told to take, since each name may be asked for."""
    cards = [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
    told = [card.get("max_model_len") for card in cards]
    known = [each for each in told if isinstance(each, int) and not isinstance(each, bool) and each > 0]
    return min(known, default=None)
