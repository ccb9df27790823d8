"""Text to token ids and back: bytes by default, the checkpoint's own tokenizer where it has one.

Streams are cut where tokens end, which may be in the middle of a character. `TextStream` therefore hands out text only when it
is whole, and only when no stop string may yet begin in it.
"""

import codecs
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from warmpool.reference.errors import BadCheckpoint

BYTES = 256
BOS, EOS, PAD = 256, 257, 258
BYTE_VOCABULARY = 259
"""256 bytes, then begin, end and padding. What an embedding has beyond that is padding: never sampled."""

REPLACEMENT = "\ufffd"


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def size(self) -> int:
        """How many ids may be sampled; the model's logits beyond that are padding."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens added."""

    def special(self, text: str) -> int | None:
        """The id of a special token such as `<|eot_id|>`, or None where there is none."""

    def token_text(self, token: int) -> str:
        """One token as text, for log-probabilities; broken characters are shown as U+FFFD."""

    def decoder(self) -> "Decoder":
        """A decoder for one sequence."""


class Decoder(Protocol):
    """Turns one sequence's tokens into text, one after another."""

    def push(self, token: int) -> str:
        """Take a token; return the whole characters that it completes."""

    def flush(self) -> str:
        """End the sequence; return what is left, a broken character as U+FFFD."""


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8; begin, end and padding follow."""

    size = BYTE_VOCABULARY

    def encode(self, text: str) -> list[int]:
        """Return the text's UTF-8 bytes."""
        return list(text.encode("utf-8", errors="replace"))

    def special(self, text: str) -> int | None:
        """Return the ids of `<|begin|>` and `<|end|>`."""
        return {"<|begin|>": BOS, "<|end|>": EOS}.get(text)

    def token_text(self, token: int) -> str:
        """Return a byte as text; special tokens are empty."""
        return bytes([token]).decode("utf-8", errors="replace") if token < BYTES else ""

    def decoder(self) -> Decoder:
        """Return a decoder for one sequence."""
        return _ByteDecoder()


class _ByteDecoder:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(bytes([token])) if token < BYTES else ""

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class FileTokenizer:
    """A checkpoint's own tokenizer.json."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 (the package is optional and has no stubs)
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        """How many ids may be sampled."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Return token ids without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def special(self, text: str) -> int | None:
        """Return the id of a special token, or None."""
        token = self._tokenizer.token_to_id(text)
        return None if token is None else int(token)

    def token_text(self, token: int) -> str:
        """Return one token as text."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return several tokens as text, without special ones."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def decoder(self) -> Decoder:
        """Return a decoder for one sequence."""
        return _WindowDecoder(self)


class _WindowDecoder:
    """Decodes a short window again with each token, because a token's text may depend on those before it.

    The window holds the tokens of the last text given out and those whose text is still incomplete.
    """

    def __init__(self, tokenizer: FileTokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0

    def push(self, token: int) -> str:
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        if text.endswith(REPLACEMENT):
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._tokenizer.decode(self._window)) if self._given < len(self._window) else ""

    def _advance(self, text: str) -> str:
        before = self._tokenizer.decode(self._window[: self._given])
        self._window = self._window[self._given :]
        self._given = len(self._window)
        return text[len(before) :]


def open_tokenizer(directory: Path) -> Tokenizer:
    """The checkpoint's tokenizer.json if it has one and the `tokenizers` package is there, else bytes.

    Raises:
        BadCheckpoint: there is a tokenizer.json and it can't be read.
    """
    path = directory / "tokenizer.json"
    if not path.exists():
        return ByteTokenizer()
    try:
        from tokenizers import Tokenizer as Rust  # noqa: PLC0415 (optional, and only where a file asks for it)
    except ImportError:
        return ByteTokenizer()
    try:
        json.loads(path.read_text())
        return FileTokenizer(Rust.from_file(str(path)))
    except Exception as error:  # the package raises bare Exception
        raise BadCheckpoint(
            f"{path}: {error}", hint="restore the file, or remove it to use bytes as tokens"
        ) from error


class TextStream:
    """One sequence's text as it may be shown: whole characters, cut before a stop string.

    Args:
        decoder: the sequence's own.
        stop: strings that end the sequence; none of their text is shown.
    """

    def __init__(self, decoder: Decoder, stop: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._held = ""
        self._longest = max((len(text) for text in self._stop), default=1)
        self.stopped_by: str | None = None

    def push(self, token: int) -> str:
        """Take a token; return the text that may be shown now. Sets `stopped_by` when a stop string is complete."""
        return self._show(self._decoder.push(token), last=False)

    def flush(self) -> str:
        """End the sequence; return the rest of its text."""
        return self._show(self._decoder.flush(), last=True) if self.stopped_by is None else ""

    def _show(self, text: str, *, last: bool) -> str:
        if not self._stop:
            return text
        self._held += text
        found = [(self._held.index(stop), stop) for stop in self._stop if stop in self._held]
        if found:
            position, self.stopped_by = min(found)
            shown, self._held = self._held[:position], ""
            return shown
        keep = 0 if last else min(self._longest - 1, len(self._held))
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown
