"""What a pod's annotations say of its seat, laid over a config that all pods of a fleet share.

The pod template says which residents a seat has and what it may take (`emberpool fleet template` writes that from the policies); a
config says how each of them is started. An agent holds no credentials of the cluster, so it reads the template's annotations from the
file in which the kubelet keeps them (downward API). PURE but for reading that file.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from warmpool.errors import StartFailed
from warmpool.expectations import PROMPTS

RESIDENTS: Final = "emberpool.dev/residents"
"""Annotation with the seat's residents: a JSON list, in the order in which they start when nobody says otherwise."""
MEMORY: Final = "emberpool.dev/memory"
"""Annotation with what the seat may take: `deviceMiB`, `hostMiB` and `kvWhenPaused`."""
HEALTH: Final = "emberpool.dev/gpu-health"
"""Annotation with the fleet's `gpuHealth.mode`: Enforce or Observe."""
_SIZES: Final = {"pausedMiB": "memoryMiB", "kvMiB": "kvMiB", "activationMiB": "activationMiB"}
_TAKEN_OVER: Final = ("container", "command", "port", "targetInFlight", "graphCapture")
_PERCENT: Final = 100


def read_annotations(path: Path) -> Mapping[str, Any]:
    """Read our annotations from the downward API's file, one `key="value"` a line.

    Raises:
        StartFailed: it can't be read, or one of ours holds no JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise StartFailed(f"{path}: can't be read: {error}") from error
    found = {}
    for line in lines:
        key, _, quoted = line.partition("=")
        if key in {RESIDENTS, MEMORY, HEALTH}:
            try:
                text = json.loads(quoted)
                found[key] = text if key == HEALTH else json.loads(text)
            except (ValueError, TypeError) as error:
                raise StartFailed(f"{path}: {key}: holds no JSON: {error}") from error
    return found


def laid_over(config: Mapping[str, Any], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with what annotations say of it.

    Raises:
        StartFailed: an annotation has another form, or lists a resident of which the config doesn't say how it is started.
    """
    laid = dict(config)
    try:
        if MEMORY in annotations:
            told = dict(annotations[MEMORY])
            kept = told.pop("kvWhenPaused", None)
            laid["memory"] = {**config.get("memory", {}), **told}
            laid |= {} if kept is None else {"kvWhenPaused": kept}
        if HEALTH in annotations:
            laid["gpuHealth"] = annotations[HEALTH]
        if RESIDENTS in annotations:
            known = {each["policy"]: each for each in config["residents"]}
            laid["residents"] = [_resident(each, known) for each in annotations[RESIDENTS]]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise StartFailed(
            f"the pod's annotations can't be laid over the config: {type(error).__name__}: {error}"
        ) from error
    return laid


def _resident(told: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    policy = told["policy"]
    if policy not in known:
        raise StartFailed(
            f"residents: the pod has one of {policy}, and the config doesn't say how it is started"
        )
    laid = dict(known[policy])
    laid |= {ours: told[theirs] for theirs, ours in _SIZES.items() if theirs in told}
    laid |= {key: told[key] for key in _TAKEN_OVER if key in told}
    if "warmup" in told:
        laid["warmup"] = {**laid.get("warmup", {}), **told["warmup"]}
    if "proof" in told:
        laid["proof"] = with_policy(laid.get("proof", {}), told["proof"])
    return laid


def with_policy(proof: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the proof of a config as a policy's `engine.proof` wants it.

    A token's probability may differ by `tolerancePercent`, so its logarithm by ln(1 + percent / 100).
    """
    laid = dict(proof)
    if told.get("source") == "Agreement":
        prompts = told.get("prompts") or PROMPTS
        laid = {"prompts": [{"prompt": prompt} for prompt in prompts], "agree": True}
        laid |= {"maxTokens": told["maxTokens"]} if "maxTokens" in told else {}
    if told.get("tolerancePercent") is not None:
        laid["tolerance"] = math.log1p(told["tolerancePercent"] / _PERCENT)
    if told.get("ownership"):
        laid["ownership"] = {**proof.get("ownership", {}), **told["ownership"]}
    return laid
