"""Text of other people made safe to print, by the rule of `crates/model/src/printable.rs`."""

from __future__ import annotations

import re

#: Control characters, and characters that are invisible or change how their neighbours are drawn.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufdd0-\ufdef\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
#: A colour, or anything that is not to be printed.
_COLOUR_OR_UNPRINTABLE = re.compile(f"\x1b\\[[0-9;:]{{0,60}}m|{_UNPRINTABLE.pattern}")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def inline(text: str) -> str:
    """The text on one line: control characters and invisible characters become visible escapes."""
    return _UNPRINTABLE.sub(lambda found: _escape(found[0]), text)


def block(text: str) -> str:
    """The same on several lines: line breaks and tabs stay."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in "\n\t" else _escape(found[0]), text)


def output(line: str) -> str:
    """A line of another person's task for a terminal: colours pass, and end with the line."""

    def shown(found: re.Match[str]) -> str:
        is_kept = len(found[0]) > 1 or found[0] in "\r\t"
        return found[0] if is_kept else _escape(found[0])

    text = _COLOUR_OR_UNPRINTABLE.sub(shown, line)
    return f"{text}\x1b[0m" if "\x1b" in text else text


def _escape(letter: str) -> str:
    if letter in _SHORT:
        return _SHORT[letter]
    return f"\\x{ord(letter):02x}" if letter.isascii() else f"\\u{{{ord(letter):x}}}"
