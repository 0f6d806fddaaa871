"""`osp label`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osp.cli.lists import check_environment
from osp.cli.text import complain, say
from osp.errors import UserError, user_path


def label(
    pile: Annotated[Path, typer.Argument(metavar="PILE", help="Unsorted photos.")],
    out: Annotated[Path, typer.Option(help="Folder for the labels and the run; named again, it goes on there.")] = Path(
        "run"
    ),
    sorted_dir: Annotated[
        Path | None, typer.Option("--sorted", help="Photos that you have sorted already: one folder per class.")
    ] = None,
    earlier: Annotated[Path | None, typer.Option("--from", help="An earlier fit whose labels count, too.")] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The default is seen from this machine alone; 0.0.0.0 by all.")
    ] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Label a pile in the browser: name groups of photos that look alike, then the doubtful ones, and see at once what
    follows for all others.

    Begins with nothing, with some sorted photos, or with an earlier fit. No photo is moved or changed; every answer is
    in labels.csv before it counts, and can be taken back. Ends as a run of `osp fit`: with the button Done, or Ctrl-C.

    Example: `osp label pile/ --out run`, then `osp sort run pile/ --to sorted-pile --as links`
    """
    check_environment()
    from osp.engine.progress import shown
    from osp.models.photo import open_backbone
    from osp.photos.folder import labels_of, nones_of
    from osp.photos.labeling import Labeling, finish, labeling_in
    from osp.photos.labels import BOOK, NONE
    from osp.photos.photographs import list_pile, list_sorted
    from osp.runs.fitted import result_of
    from osp.serve.label import label as start

    run, root = user_path(out), None if sorted_dir is None else user_path(sorted_dir)
    before, name = None if earlier is None else user_path(earlier), "lite0"
    old = [] if before is None else labels_of(before)
    if before is not None:
        name = str(result_of(before)["backbone"])
    listed = list_pile(user_path(pile))
    known, classes = list_sorted(root, old, least=0)
    if NONE in classes:
        raise UserError(f"No class may be called {NONE!r}: in {BOOK} it means none of the classes. Rename its folder.")
    if not listed.files:
        raise UserError(f"There is no photo in {pile}.")
    if before is not None:
        known.files += [each.file for each in nones_of(before)]
        known.labels += [len(classes)] * (len(known.files) - len(known.labels))
    with labeling_in(run):
        state = Labeling(run, known, (*classes, NONE), listed.files)
        asked = {"open_page": open_page, "say": say, "warn": lambda text: complain(f"warning: {text}")}
        start(state, lambda: open_backbone(name, fetch=False), host, port, **asked)  # type: ignore[arg-type]
        say(f"Answers in {state.book.path}: {state.view()['answers']:,}. Writing the run ...")
        with shown() as display:
            made = finish(state, run, root, user_path(pile), before, say, display.loading)
    if made is None:
        say(f"A run needs at least two classes. Your answers are kept: the same command goes on with {run}.")
        return
    from osp.cli.photos import print_fit
    from osp.report import write_report

    print_fit(made.result, made.path)
    say(f"Page: {write_report(made)}")
