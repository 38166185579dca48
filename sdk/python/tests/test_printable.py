"""Text of other people on a terminal."""

from __future__ import annotations

import muster
from muster import _printable
from muster._show import columns

HOSTILE = "a\x1b]52;c;cm0=\x07\x9b2J\u202e\u200b\x7f\ufeff"
SHOWN = r"a\x1b]52;c;cm0=\x07\u{9b}2J\u{202e}\u{200b}\x7f\u{feff}"


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("train-7", "größe 训练 🚀", r"C:\x1b", ""):
        assert _printable.inline(text) == text
        assert _printable.output(text) == text
    assert _printable.block("a\n\tb") == "a\n\tb"


def test_control_characters_are_shown() -> None:
    assert _printable.inline(HOSTILE + "\n") == SHOWN + r"\n"
    assert _printable.block(HOSTILE + "\r\n") == SHOWN + "\\r\n"


def test_of_another_persons_output_only_colours_pass() -> None:
    assert _printable.output(HOSTILE) == SHOWN
    assert _printable.output("\x1b[31mred") == "\x1b[31mred\x1b[0m"
    assert _printable.output("1%\r2%\x1b[2J") == "1%\r2%\\x1b[2J"


def test_errors_and_tables_are_safe_to_print() -> None:
    error = muster.Error(HOSTILE, hint=HOSTILE)
    assert str(error) == f"{SHOWN} [unknown]\nhint: {SHOWN}"
    assert error.message == HOSTILE
    assert columns(["name"], [[HOSTILE + "\nforged"]]).splitlines()[1] == SHOWN + r"\nforged"
