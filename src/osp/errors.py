"""The one exception that reaches users as a plain sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can mend: the message names the file, option or number and says what to do.

    The command prints the message without a traceback and ends with exit code 2.
    """


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
