"""Characters that nobody sees, or takes for others: how they are written where people read, and which no file may hold.

A terminal obeys control characters, a bidirectional mark turns round what stands behind it, and a no-break space looks
like a space and is a letter to YAML. What is shown of a file is therefore escaped as YAML escapes it between double quotes.
"""

import re
import unicodedata
from typing import Final

UNSEEN: Final = re.compile(
    "[\x85\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""What can't be seen, or not be told from a space: Unicode's categories Zs (but for the space), Zl, Zp and Cf, and fillers."""
_HARMLESS_IN_COMMENTS: Final = re.compile("[\u00a0\u00ad\u1680\u2000-\u200d\u202f\u205f\u2060\u3000]")
"""What people write in prose, and what changes nothing of how the rest of the line reads."""
_NO_BREAK: Final = frozenset("\u00a0\u2007\u202f")
_SHORT: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\e"}


def escaped(text: str, keep: str = "") -> str:
    """Write a text so that each of its characters can be seen.

    Args:
        text: the text.
        keep: characters that stay as they are, such as the line breaks of a message.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escape(each) for each in text)


def _escape(character: str) -> str:
    code = ord(character)
    if short := _SHORT.get(character):
        return short
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - as many digits as the escapes have


def may_stand(character: str, before: str) -> bool:
    """Whether an unseen character does no harm, because it stands in the prose of a comment.

    Args:
        character: the character.
        before: what stands before it in its line. A number sign behind a quote may be part of a text, and doesn't count.
    """
    if _HARMLESS_IN_COMMENTS.fullmatch(character) is None:
        return False
    head, sign, _ = before.partition("#")
    return bool(sign) and (not head or head[-1] in " \t") and not {'"', "'"} & set(head)


def said_of(character: str, before: str) -> tuple[str, str]:
    """Say what is wrong with an unseen character, and the mend.

    Args:
        character: the character.
        before: what stands before it in its line.
    """
    name = f"U+{ord(character):04X}"
    if unicodedata.category(character) != "Zs":
        hint = "remove it; if it is meant, write it as an escape between double quotes"
        return f"holds the invisible character {name}", hint
    what = (
        f"the no-break space {name}" if character in _NO_BREAK else f"the space {name}, which is no plain one"
    )
    if not before.strip():
        return f"the indentation holds {what}", "indent with plain spaces"
    return f"holds {what}", "write a plain space; if it is meant, write it as an escape between double quotes"
