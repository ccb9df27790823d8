"""Arguments of engines in the words of a command line: `--flag value` and `--flag=value`."""

from collections.abc import Sequence


def has(words: Sequence[str], flag: str) -> bool:
    """Whether an argument is there."""
    return any(word == flag or word.startswith(f"{flag}=") for word in words)


def value_of(words: Sequence[str], flag: str) -> str | None:
    """Return what an argument is set to where it first is; None where it isn't there, or has no value."""
    for index, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag:
            return words[index + 1] if index + 1 < len(words) else None
    return None
