"""The one exception that reaches users as a plain sentence, and how text of unknown origin is made fit to print."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path


class UserError(Exception):
    """A mistake the user can mend: the message names the file, option or number and says what to do.

    The command prints the message without a traceback and ends with exit code 2. A word of more than a thousand
    characters, which only a damaged or hostile file holds, is named by its beginning.
    """

    def __str__(self) -> str:
        return _LONG_WORD.sub(lambda word: f"{word[0][:60]}... ({len(word[0]):,} characters)", super().__str__())


_LONG_WORD = re.compile(r"\S{1001,}")


def suggest(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for a near miss of a known word, otherwise the list of known words.

    >>> suggest("fixmach", ["fixmatch", "osp"])
    " Did you mean 'fixmatch'?"
    >>> suggest("qq", ["b", "a"])
    ' Choose from: a, b.'
    """
    choices = sorted(set(known))
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if near:
        return f" Did you mean {near[0]!r}?"
    return f" Choose from: {', '.join(choices)}." if choices else ""


def first_few(names: Sequence[str], most: int = 5) -> str:
    """Up to `most` of these names, and how many more there are.

    >>> first_few(["a", "b"]), first_few("abcdefg")
    ('a; b', 'a; b; c; d; e; and 2 more')
    """
    more = f"; and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind where it says nothing.

    >>> first_line(ValueError("no room\\non the device")), first_line(KeyboardInterrupt())
    ('no room', 'KeyboardInterrupt')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


JOINERS = "\u200c\u200d"
"""Invisible, but words of several scripts and many emoji are spelt with them; they move nothing."""


def printable(text: object, lines: bool = False) -> str:
    r"""Text with every character that would steer a terminal, or reorder or hide what it shows, written out.

    Names of files and classes come from anywhere: an escape sequence in one could color, clear or retitle the terminal
    of whoever looks at it, and a bidi override shows another name than the file has. Controls (C0, C1), formats,
    line separators and lone surrogates become `\x1b`, `\u202e` and the like. `lines=True` keeps line breaks, for
    messages that have several lines themselves.

    >>> printable("cat\x1b[31m\n"), printable("two\nlines", lines=True)
    ('cat\\x1b[31m\\n', 'two\nlines')
    """
    return "".join(
        char if char in JOINERS or (lines and char == "\n") or not _steers(char) else _written_out(char)
        for char in str(text)
    )


def _steers(char: str) -> bool:
    return (char > "~" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")) or char < " " or char == "\x7f"


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _from_bytes(char: str) -> bool:
    """Whether a lone surrogate stands for a byte of a file name that is no UTF-8, as Python writes it."""
    return "\udc80" <= char <= "\udcff"


def short(value: object) -> str:
    """A value for a message: whole where it is short, else its beginning.

    >>> short(12), short("a" * 90)[:12], short(10**5000)
    ('12', "'aaaaaaaaaaa", 'a number of more than 4,000 digits')
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes out no number of more than 4,300 digits
        return "a number of more than 4,000 digits"
    return text if len(text) <= 60 else f"{text[:60]}..."


LONGEST_PATH = 4096
"""Characters; Linux takes no path of more bytes, other systems fewer."""


def user_path(text: str | Path) -> Path:
    """A path as the user wrote it, with `~` and `~name` replaced by that home folder."""
    if "\0" in str(text) or any("\ud800" <= char <= "\udfff" and not _from_bytes(char) for char in str(text)):
        raise UserError(f"The path {printable(text)!r} holds a character that no file name can have.")
    if len(str(text)) > LONGEST_PATH:
        raise UserError(f"The path {short(str(text))} has {len(str(text)):,} characters; no file has so long a path.")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = Path(text).parts[0]
        raise UserError(f"The folder {str(text)!r}: there is no home folder {user}. Write the path out.") from None
