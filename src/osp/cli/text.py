"""Everything the command prints goes through here: names of files and classes are shown, never obeyed."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from osp.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 160
"""Columns of a table that no terminal shows."""


def say(text: object = "", end: str = "\n") -> None:
    """A line on standard output."""
    print(printable(text, lines=True), end=end, flush=True)


def tell(text: str) -> None:
    """A line of progress, on standard error."""
    print(printable(text, lines=True), file=sys.stderr, flush=True)


def quoted(path: object) -> str:
    """As a shell takes it, in a command to be pasted; a name that begins with a dash is no option.

    >>> quoted("my run"), quoted("-run")
    ("'my run'", './-run')
    """
    text = str(path)
    return printable(shlex.quote(f"./{text}" if text.startswith("-") else text))


def complain(text: object) -> None:
    """A line on standard error; without one (full, closed) the exit code has to say it."""
    try:
        print(f"osp: {printable(text, lines=True)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = None  # or the interpreter tries to flush it once more


@contextmanager
def stopped(advice: str) -> Iterator[None]:
    """Say what to do next when the user stops it (Ctrl-C), or the system (SIGTERM)."""
    code = 128 + signal.SIGINT

    def end(number: int, _: object) -> None:
        nonlocal code
        code = 128 + number
        raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if here else None
    try:
        yield
    except KeyboardInterrupt:
        complain(f"Stopped. {advice}")
        raise typer.Exit(code) from None
    finally:
        if here:
            signal.signal(signal.SIGTERM, before)


def plain(text: object, style: str = "", lines: bool = False) -> Text:
    """User text for a table or a console: a `Text` is never read as markup."""
    from rich.text import Text

    return Text(printable(text, lines), style)


def console() -> Console:
    """What tables are printed on: as wide as the terminal; where there is none, as in a file, wide enough for them."""
    from rich.console import Console

    shown = any(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    width = None if shown or "COLUMNS" in os.environ else WIDTH
    return Console(markup=False, emoji=False, highlight=False, width=width)


def columns(*rows: tuple[object, ...], headings: tuple[str, ...] = (), padding: tuple[int, int] = (0, 2)) -> Any:
    """A table without lines. The first column is never cut or broken: its words are typed."""
    from rich.table import Table

    table = Table(box=None, padding=padding, show_header=bool(headings))
    first = max((len(printable(row[0])) for row in rows), default=0)
    table.add_column(headings[0] if headings else "", no_wrap=True, min_width=first)
    for heading in headings[1:] or [""] * (max(map(len, rows), default=1) - 1):
        table.add_column(heading)
    for row in rows:
        table.add_row(*(plain(value, lines=True) for value in row))
    return table
