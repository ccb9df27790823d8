"""Who takes part when something is killed: two seats on one device, their residents and policies.

On the first seat live the resident that is hit and a rival of higher priority, on the second the neighbour.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaler.drill.bench.installation import Json, SeatPlan
from scaler.drill.bench.layout import document
from scaler.drill.bench.machine import gpu_uuids
from scaler.drill.bench.sound import EngineShape
from scaler.drill.bench.streams import Question

SEAT, BESIDE = "shared", "beside"
HIT, RIVAL, NEIGHBOUR = "hit", "rival", "neighbour"
MODELS = (HIT, RIVAL, NEIGHBOUR)
_PACE = 25
"""Tokens per second of each stream: a reader's pace, and long enough to be hit in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all rows share.

    Attributes:
        shape: the engines.
        questions: per model its prompt.
        expected: per model what a sound engine answers to it.
        proof: what residents are proven against.
        parked_mebibytes: host memory for parked residents; 0 where none are parked.
    """

    shape: EngineShape
    questions: Mapping[str, Sequence[int]]
    expected: Mapping[str, Sequence[int]]
    proof: Json
    parked_mebibytes: int = 0

    def question(self, model: str, tokens: int) -> Question:
        """Return what a model is asked for so many tokens."""
        return Question(model=model, prompt=self.questions[model], tokens=tokens)

    def policies(self) -> str:
        """Render fleets and policies."""
        gpus = 1 if self.shape.device == "cuda" else 0
        parked = {"parked": {"hostMemoryMiB": self.parked_mebibytes}} if self.parked_mebibytes else {}
        documents = [
            document("Fleet", name, {"maxSeats": 1, "seat": {"gpus": gpus}, "spare": spare})
            for name, spare in (
                (SEAT, {"mode": "Fixed", "min": 1, **parked}),
                (BESIDE, {"mode": "Fixed", "min": 0}),
            )
        ]
        for name, fleet, priority, least in (
            (HIT, SEAT, 0, 0),
            (RIVAL, SEAT, 100, 0),
            (NEIGHBOUR, BESIDE, 0, 1),
        ):
            spec = {
                "fleets": [{"name": fleet, "targetInFlight": 1}],
                "priority": priority,
                "serving": {"min": least, "max": 1},
                "burst": {"windowSeconds": 1, "stableWindowSeconds": 1, "demoteAfterSeconds": 0},
            }
            documents.append(document("ScalingPolicy", name, spec))
        return "\n---\n".join(json.dumps(each) for each in documents) + "\n"

    def seats(self) -> list[SeatPlan]:
        """Return the two seats."""
        gpus = gpu_uuids()[:1] if self.shape.device == "cuda" else []
        settings = {"memory": {"hostMiB": self.parked_mebibytes}} if self.parked_mebibytes else {}
        return [
            SeatPlan(
                name=SEAT,
                residents=[self._resident(HIT), self._resident(RIVAL)],
                gpus=gpus,
                settings=settings,
            ),
            SeatPlan(name=BESIDE, residents=[self._resident(NEIGHBOUR)], gpus=gpus),
        ]

    def _resident(self, policy: str) -> Json:
        command = [sys.executable, "-m", "warmpool.reference", "serve", "--model", policy]
        command += self.shape.arguments()
        command += ["--host", "{host}", "--port", "{port}", "--control-port", "{controlPort}"]
        command += ["--guard", "closed", "--die-with-parent", "--max-tokens-per-second", str(_PACE)]
        warmup = {"prompts": ["The first request", "The first request " * 8], "maxTokens": 4}
        return {
            "policy": policy,
            "model": policy,
            "type": "Reference",
            "command": command,
            "proof": self.proof,
            "warmup": warmup,
        }
