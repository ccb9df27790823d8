"""Everybody who asks something while something is killed, and what they see."""

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp

from scaler.drill.bench.installation import Installation
from scaler.drill.bench.kill_rows import Client
from scaler.drill.bench.kill_setting import NEIGHBOUR, Setting
from scaler.drill.bench.streams import Answer, ask
from scaler.drill.bench.waiting import until

_NEIGHBOURLY = 100
"""Tokens of each of the neighbour's answers."""
_BEGIN_SECONDS = 60.0
_ANSWER_SECONDS = 120.0
_AT_ONCE_SECONDS = 0.001


@dataclass(slots=True)
class Streams:
    """Everybody who asks something, for all rows."""

    setting: Setting
    installation: Installation
    session: aiohttp.ClientSession
    group: asyncio.TaskGroup
    neighbourly: list[Answer] = field(default_factory=list)

    def begin(self, model: str, tokens: int) -> tuple[Answer, asyncio.Task[Answer]]:
        """Send a question, and return its answer as it comes."""
        answer = Answer(model=model, sent=time.time())
        asking = ask(
            self.session,
            self.installation.gateway,
            self.setting.question(model, tokens),
            seconds=_ANSWER_SECONDS,
            answer=answer,
        )
        return answer, self.group.create_task(asking)

    async def keep_neighbour_busy(self) -> None:
        """Ask the neighbour again and again."""
        while True:
            answer, asking = self.begin(NEIGHBOUR, _NEIGHBOURLY)
            self.neighbourly.append(answer)
            await asking

    async def neighbour_in_the_middle(self) -> None:
        """Wait until the neighbour's stream has begun and is far from its end."""

        async def middle() -> bool:
            seen = len(self.neighbourly[-1].tokens) if self.neighbourly else 0
            return 0 < seen < _NEIGHBOURLY * 3 // 4

        await until(middle, "a neighbour's stream", _BEGIN_SECONDS)

    async def since(self, moment: float) -> list[Client]:
        """Wait for the end of the neighbour's stream of the moment; return those that ran at `moment` and later ones."""
        last = self.neighbourly[-1]

        async def ended() -> bool:
            return last.ended is not None

        await until(ended, "the end of a neighbour's stream", _ANSWER_SECONDS)
        return [
            self.seen(answer, "the neighbour")
            for answer in self.neighbourly
            if answer.ended is not None and answer.ended >= moment and answer.sent <= (last.ended or 0.0)
        ]

    def seen(self, answer: Answer, who: str) -> Client:
        """Return what the client of an answer that has ended saw."""
        return Client(
            who=who,
            outcome=answer.outcome,
            understood=answer.understood,
            right=answer.agrees(self.setting.expected[answer.model]),
            tokens=len(answer.tokens),
            seconds=(answer.ended or answer.sent) - answer.sent,
            longest_gap=answer.longest_gap,
            detail=answer.detail,
        )


async def begun(answer: Answer, tokens: int = 1) -> None:
    """Wait for the first tokens of an answer, or for its end."""

    async def there() -> bool:
        return len(answer.tokens) >= tokens or answer.ended is not None

    await until(there, "a stream", _BEGIN_SECONDS, _AT_ONCE_SECONDS)
