"""`osp sort`, and its undoing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from osp.cli.lists import check_environment
from osp.cli.predict import ACCEPT_HELP, one_of
from osp.cli.text import columns, complain, console, quoted, say, stopped
from osp.errors import UserError, printable, user_path

KINDS = {"csv": "csv", "links": "link", "copies": "copy", "xmp": "xmp"}


def sort(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Folder of an `osp fit` or `osp train`.")] = None,
    pile: Annotated[Path | None, typer.Argument(metavar="PILE", help="Folder with the photos to sort.")] = None,
    to: Annotated[
        Path | None, typer.Option(help="Folder to sort into: new, empty, or that of an earlier sort.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="csv (a table only, the default), links, copies, or xmp: keywords in sidecars beside the photos.",
        ),
    ] = None,
    move: Annotated[
        bool,
        typer.Option(
            "--move", help="Move the photos, with their .xmp, .aae, .mov and raw files; --undo puts all back."
        ),
    ] = False,
    undo: Annotated[Path | None, typer.Option(help="Put back what was sorted into this folder.")] = None,
    trust_journal: Annotated[
        bool, typer.Option("--trust-journal", help="Obey a journal that somebody else may have written.")
    ] = False,
    worth: Annotated[
        int | None,
        typer.Option("--next", min=1, help="List the N photos most worth labeling next; with --to, link those alone."),
    ] = None,
    accept: Annotated[float, typer.Option(help=ACCEPT_HELP)] = 0.95,
    sure: Annotated[
        float, typer.Option(min=0, max=1, help="Photos that are less surely of their class go to the folder _unsure.")
    ] = 0.8,
) -> None:
    """Sort a pile into folders by class; doubtful photos and unknown ones get folders of their own.

    Only a table is written unless you ask for links, copies or moves. Nothing is ever overwritten, and a journal in
    the folder lets --undo put everything back, also after a crash.

    Examples:

    - `osp sort run pile/ --to by-class --as links`

    - `osp sort run pile/ --to by-class --move`, and back: `osp sort --undo by-class`

    - `osp sort run pile/ --next 100` (what to label next, and why); with `--to look` links to those 100

    - `osp fit by-class --from run --out run2` learns from what you moved between the folders by hand

    Photos that cannot be read stay where they are. The exit code is 1 if another photo had to stay, too.
    """
    check_environment()
    from osp.engine.progress import shown
    from osp.evaluate.thresholds import check_accept

    if undo is not None:
        if run is not None or to is not None or worth is not None or move:
            raise UserError("--undo takes a folder and nothing else: osp sort --undo FOLDER.")
        trusted = _trusted(user_path(undo), trust_journal)
        again = f"osp sort --undo {quoted(undo)} goes on where it was"
        with shown() as display, stopped(f"Some photos are back, the others still sorted; {again}."):
            _undo(undo, trusted, display)
        return
    if run is None or pile is None:
        raise UserError("Name the run and the pile: osp sort RUN PILE --to FOLDER.")
    if kind is not None:
        one_of("--as", kind, tuple(KINDS))
    if to is None and worth is None:
        raise UserError("Name a folder to sort into with --to, or ask for photos to label with --next 100.")
    if to is None and move:
        raise UserError(
            "--next lists photos and moves none. Add --to FOLDER to move exactly those, or leave out --move."
        )
    if move and kind is not None:
        raise UserError(f"--move and --as {kind} exclude each other.")
    check_accept(accept)
    trusted = to is not None and _trusted(user_path(to), trust_journal)
    action = "move" if move else KINDS[kind or ("csv" if worth is None else "links")]
    undone = f"; osp sort --undo {quoted(to)} puts everything back" if to else ""
    with shown() as display, stopped(f"Nothing is lost. The same command goes on{undone}."):
        _sort(run, user_path(pile), to, action, worth, accept, sure, trusted, display)


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
        say(f"{made} links or copies removed; your photos were never touched.")
    if done.moved:
        along = f", with {done.beside} files that belong to them" if done.beside else ""
        say(f"{done.moved} photos are back in their places{along}.")
    if done.sidecars:
        say(f"{done.sidecars} sidecars (.xmp) are as they were before, or gone where there were none.")
    if not done.restored and not done.sidecars and not done.problems:
        table = "The table was removed; there" if done.table else "There"
        say(f"{table} were no photos to put back.")
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
    from osp.photos.strangers import any_suspected, let_in
    from osp.runs.fitted import strangers_in_words

    folder = user_path(to) if to is not None else Path()
    if to is not None:
        check_places(pile, folder)
    files = list_pile(pile).files
    resumed = to is not None and has_journal(folder)  # a sort killed after its last move
    if not files and not resumed:
        raise UserError(f"There is no image in {printable(pile)}.")
    model = load(run)
    if worth is not None:
        chosen = worth_labeling(model, user_path(run), files, worth, accept, display.loading)
        for file, reason in chosen:
            say(f"{printable(file)}   {reason}")
        if to is None:
            return
        files, sure = [file for file, _ in chosen], 2.0  # all of them are to be looked at
    found, labeled = decisions(model, user_path(run), files, accept, display.loading)
    if not found and not resumed:
        raise UserError(f"There is nothing to sort in {printable(pile)}: the run has learned from all its photos.")
    if labeled:
        say(f"Photos of the pile that you had sorted already; they stay where they are: {labeled:,}.")
    given = (each for each in found if not each.reason)
    done = sort_pile(given, folder, action, sure, display.loading, pile=pile, trust_journal=trusted)
    if done.earlier:
        say(f"Photos that an earlier sort had put there already, counted below: {done.earlier:,}.")
    console().print(columns(*sorted(done.counts.items()), headings=("folder", "photos")))
    classes = let_in(found, model.class_names)
    if any(each.strangers for each in classes.values()) and any_suspected(model):
        say(strangers_in_words(classes))
    if done.beside:
        say(f"Files that went along with their photos (.xmp, .aae, .mov, raw): {done.beside:,}.")
    say(f"Table: {done.table}")
    if action != "csv":
        say(f"Undo: osp sort --undo {quoted(to)}")
    if unread := [(each.file, each.reason) for each in found if each.reason]:
        say(f"Photos that cannot be read, and stay where they are: {len(unread):,}.")
    for file, reason in (*unread, *done.failed):
        complain(f"{printable(file)}: {reason}; it stays where it is.")
    if done.failed:
        raise typer.Exit(1)
