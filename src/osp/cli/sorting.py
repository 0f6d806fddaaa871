"""`osp sort`, and its undoing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from osp.cli.lists import check_environment
from osp.cli.photos import ACCEPT_HELP, one_of
from osp.cli.text import columns, complain, console, say
from osp.errors import UserError, printable, user_path

KINDS = {"csv": "csv", "links": "link", "copies": "copy"}


def sort(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Folder of an `osp fit` or `osp train`.")] = None,
    pile: Annotated[Path | None, typer.Argument(metavar="PILE", help="Folder with the photos to sort.")] = None,
    to: Annotated[
        Path | None, typer.Option(help="Folder to sort into: new, empty, or that of an earlier sort.")
    ] = None,
    kind: Annotated[str, typer.Option("--as", help="csv (a table only), links or copies.")] = "csv",
    move: Annotated[bool, typer.Option("--move", help="Move the photos; --undo puts them back.")] = False,
    undo: Annotated[Path | None, typer.Option(help="Put back what was sorted into this folder.")] = None,
    trust_journal: Annotated[
        bool, typer.Option("--trust-journal", help="Obey a journal that somebody else may have written.")
    ] = False,
    worth: Annotated[
        int | None, typer.Option("--next", min=1, help="List so many photos most worth sorting by hand next.")
    ] = None,
    accept: Annotated[float, typer.Option(help=ACCEPT_HELP)] = 0.95,
    sure: Annotated[float, typer.Option(min=0, max=1, help="Less probable ones go to the folder _unsure.")] = 0.8,
) -> None:
    """Sort a pile into folders by class; doubtful photos and unknown ones get folders of their own.

    Only a table is written unless you ask for links, copies or moves. Nothing is ever overwritten, and a journal in
    the folder lets --undo put everything back, also after a crash.

    Examples:

    - `osp sort run pile/ --to by-class --as links`

    - `osp sort run pile/ --to by-class --move`, and back: `osp sort --undo by-class`

    - `osp sort run pile/ --next 100` (what to label next, and why)
    """
    check_environment()
    from osp.engine.progress import shown

    if undo is not None:
        if run is not None or to is not None or worth is not None or move:
            raise UserError("--undo takes a folder and nothing else: osp sort --undo FOLDER.")
        trusted = _trusted(user_path(undo), trust_journal)
        with shown() as display:
            _undo(undo, trusted, display)
        return
    if run is None or pile is None:
        raise UserError("Name the run and the pile: osp sort RUN PILE --to FOLDER.")
    one_of("--as", kind, tuple(KINDS))
    if to is None and worth is None:
        raise UserError("Name a folder to sort into with --to, or ask for photos to label with --next 100.")
    if move and kind != "csv":
        raise UserError(f"--move and --as {kind} exclude each other.")
    trusted = to is not None and _trusted(user_path(to), trust_journal)
    with shown() as display:
        _sort(run, user_path(pile), to, "move" if move else KINDS[kind], worth, accept, sure, trusted, display)


def _trusted(folder: Path, trust: bool) -> bool:
    """Whether a strange journal may be obeyed: where there is somebody to ask, they are shown what it says."""
    from osp.photos.journal import JOURNAL, check_origin, has_journal, read_journal

    if trust or not has_journal(folder):
        return trust
    found = read_journal(folder / JOURNAL)
    if found.strange and _at_a_terminal():
        say(f"The journal in {printable(folder)} may not be yours: {found.strange}. It would")
        for line in found.in_words():
            say(f"  {line}")
        if not typer.confirm("Obey it?"):
            raise UserError("Nothing was done.")
        return True
    check_origin(folder, found, trust)
    return False


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _undo(folder: Path, trusted: bool, display: Any) -> None:
    from osp.photos.undoing import undo

    done = undo(user_path(folder), display.loading, trust_journal=trusted)
    if (made := done.restored - done.moved) > 0:
        say(f"{made} links or copies were taken away; their photos never left their places.")
    if done.moved:
        say(f"{done.moved} photos are back in their places.")
    if not done.restored and done.table:
        say("The table was taken away; there were no photos to put back.")
    elif not done.restored and not done.problems:
        say("There were no photos to put back.")
    for file, reason in done.problems:
        complain(f"{printable(file)}: {printable(reason)}")
    if done.problems:
        raise typer.Exit(1)


def _sort(
    run: Path,
    pile: Path,
    to: Path | None,
    action: Any,
    worth: int | None,
    accept: float,
    sure: float,
    trusted: bool,
    display: Any,
) -> None:
    from osp.models import load
    from osp.photos.decisions import decisions, worth_labeling
    from osp.photos.journal import has_journal
    from osp.photos.photographs import list_pile
    from osp.photos.sorting import check_places, sort_pile

    if to is not None:
        check_places(pile, user_path(to))
    files = list_pile(pile).files
    resumed = to is not None and has_journal(user_path(to))  # a sort killed after its last move
    if not files and not resumed:
        raise UserError(f"There is no image in {printable(pile)}.")
    model = load(run)
    if worth is not None:
        for file, reason in worth_labeling(model, user_path(run), files, worth, accept, display.loading):
            say(f"{printable(file)}   {reason}")
    if to is None:
        return
    found, labeled = decisions(model, user_path(run), files, accept, display.loading)
    if not found and not resumed:
        raise UserError(f"There is nothing to sort in {printable(pile)}: the run has learned from all its photos.")
    if labeled:
        say(f"Photos of the pile that the run has learned from, and that stay where they are: {labeled:,}.")
    given = (each for each in found if not each.reason)
    done = sort_pile(given, user_path(to), action, sure, display.loading, pile=pile, trust_journal=trusted)
    if done.earlier:
        say(f"Photos that an earlier sort had put there already, counted below: {done.earlier:,}.")
    console().print(columns(*sorted(done.counts.items()), headings=("folder", "photos")))
    say(f"Table: {done.table}")
    if action != "csv":
        say(f"Undo: osp sort --undo {to}")
    failed = [*((each.file, each.reason) for each in found if each.reason), *done.failed]
    for file, reason in failed:
        complain(f"{printable(file)}: {reason}; it stays where it is.")
    if failed:
        raise typer.Exit(1)
