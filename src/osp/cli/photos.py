"""`osp fit`, `osp predict` and `osp sort`: your own photographs."""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osp.cli.lists import check_environment
from osp.cli.text import columns, complain, console, say
from osp.errors import UserError, printable, suggest, user_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from osp.photos.model import Prediction

FORMATS = ("table", "csv", "jsonl")
KINDS = {"csv": "csv", "links": "link", "copies": "copy"}
ACCEPT_HELP = "Share of the known classes that the OOD threshold lets through, such as 0.99 to lose fewer of them."


def fit(
    sorted_dir: Annotated[Path, typer.Argument(metavar="SORTED", help="Your sorted photos: one folder per class.")],
    pile: Annotated[Path | None, typer.Argument(metavar="[PILE]", help="Unsorted photos, many of no class.")] = None,
    out: Annotated[Path, typer.Option(help="New folder for the model and the results.")] = Path("run"),
    test: Annotated[
        Path | None, typer.Option(help="Photos to test on: folders named like the classes, others are foreign.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="lite0: a pretrained network, the default; nothing is downloaded. hf:FOLDER or hf:NAME: one of "
            "transformers (DINOv2, SigLIP, ViT, ConvNeXt). none: from scratch."
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="Train on from the instant answer, e.g. osp or fixmatch, and keep the better of both; with --backbone "
            "none what is trained (there: osp unless you say otherwise)."
        ),
    ] = "instant",
    earlier: Annotated[
        Path | None, typer.Option("--from", help="An earlier fit whose labels, pile and backbone are used again.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Length of training from scratch (--backbone none); default: 3,000.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    page: Annotated[bool, typer.Option(help="Write report.html into the run, as `osp report` does.")] = True,
) -> None:
    """Make a classifier from a folder of sorted photos and a pile of unsorted ones.

    A few photos per class are enough, and the pile may hold anything: it says which of its photos belong to none of
    the classes. Any formats and sizes; nothing is moved or changed. Stopped in the middle, it goes on when started
    again.

    Examples:

    - `osp fit sorted/ pile/ --out run`

    - `osp fit sorted/ pile/ --out run --test kept-aside/`

    - `osp fit newly-sorted/ --from run --out run2`

    Then: `osp predict run new.jpg`, `osp sort run pile/ --to sorted-pile --as links`.
    """
    begun = time.monotonic()
    check_environment()
    from osp.engine.progress import shown
    from osp.photos.fit import fit as start

    if backbone == "none":
        if earlier is not None:
            raise UserError("--from goes on from features; --backbone none has none. Leave out one of the two.")
        _from_scratch(sorted_dir, pile, out, test, method, seed, steps, page)
        return
    if steps is not None:
        raise UserError("--steps goes with --backbone none; with a pretrained backbone there is nothing to wait for.")
    with shown() as display:
        given: dict[str, Any] = {"test": test, "backbone": backbone, "method": method, "earlier": earlier}
        run = start(sorted_dir, pile, out, **given, seed=seed, say=say, progress=display.loading)
    _print_fit(run.result, run.path)
    if page:
        from osp.photos.page.page import write_photo_report

        say(f"Page: {write_photo_report(run.path)}")
    say(f"Took {time.monotonic() - begun:.0f} s{', the page included' if page else ''}.")


def _from_scratch(
    sorted_dir: Path,
    pile: Path | None,
    out: Path,
    test: Path | None,
    method: str,
    seed: int,
    steps: int | None,
    page: bool,
) -> None:
    """Without a backbone it is `osp train` on the user's folders."""
    from osp.cli.train import print_result, run_shown
    from osp.data import describe_set
    from osp.engine.progress import shown
    from osp.files import check_writable
    from osp.photos.folder import check_free
    from osp.photos.predict import figures_on, open_trained
    from osp.photos.reading import list_pile, list_sorted, list_test, without_copies
    from osp.photos.saying import no_pile
    from osp.recipe import Recipe

    begun = (user_path(out) / "plan.yaml").is_file()
    if not begun:
        check_free(user_path(out))
        check_writable(user_path(out))
    known, classes = list_sorted(user_path(sorted_dir))
    unsorted = list_pile(None if pile is None else user_path(pile))
    tested = None
    if test is not None:
        tested = without_copies(list_test(user_path(test), classes), (known, unsorted))
    for note in (*known.notes, *unsorted.notes, *(tested.notes if tested else ())):
        say(note)
    where: dict[str, Any] = {"ood_data": "pile", "ood_dir": str(pile)} if unsorted.files else {}
    if method == "instant":
        method = "osp" if unsorted.files else "supervised"
    if not unsorted.files:
        say(f"{no_pile(pile, 0, False)} The classifier learns from the sorted photos alone.")
    training = describe_set("folder", user_path(sorted_dir)).smallest_class or 0
    held = min(5, training // 4)
    say(
        f"Training from scratch by {method}, on small images: far slower than with a pretrained backbone, and worse "
        f"with few labels. A fifth of the sorted photos is kept for testing; {training - held} of each class teach, "
        f"{held} are for validation, and what larger classes have beyond that teaches without its label."
    )
    counts = {"labels_per_class": max(training - held, 1), "val_per_class": held}
    common: dict[str, Any] = {"data": "folder", "data_dir": str(sorted_dir), "scale": "cpu", **where, **counts}
    recipe = Recipe(**common, method=method, seed=seed, steps=steps)
    run = run_shown(recipe, user_path(out), resume=begun)
    print_result(run.result)
    if tested is not None:
        with shown() as display:
            figures = figures_on(open_trained(run.path), tested, classes, display.loading)
        say(f"Test photos: accuracy {_share(figures)}.")
        _say_foreign(figures)
    say(f"Run: {run.path}")
    if page:
        from osp.report import write_report

        say(f"Page: {write_report(run.path)}")


def _print_fit(result: dict[str, Any], path: Path) -> None:
    from osp.photos.saying import let_in

    rows: list[tuple[object, ...]] = []
    for name, estimate in result["estimates"].items():
        parts = [estimate, *([result["test"].get(name)] if result["test"] else [])]
        rows.append((name, *(_share(part) for part in parts)))
        if _unequal(result):
            each = [f"{part['balanced_accuracy']:.1f} %" if part else "" for part in parts]
            rows.append(("  all classes alike", *each))
    say("\nAccuracy, with its 95 % interval:")
    headings = ("", "cross-validation", *(["test photos"] if result["test"] else []))
    console().print(columns(*rows, headings=headings, padding=(0, 1)))
    say(f"Kept: {result['kept']}.")
    tested = (result["test"] or {}).get(result["kept"]) or {}
    _say_foreign(tested)
    pile = result["pile_photos"]
    if pile["counted"]:
        listed = ", ".join(f"{name} {count}" for name, count in pile["per_class"].items())
        say(f"The pile: {pile['in']:,} of {pile['counted']:,} photos look like one of the classes ({listed}); ", "")
        say(f"estimated share {100 * pile['share']:.0f} %.")
        if doubt := let_in(pile["in"], pile["counted"], pile["share"], tested):
            say(doubt)
        if not result["threshold_photos"]:
            say("That is a guess: with one photo per class the threshold rests on the pile alone.")
    if result["suspected_labels"]:
        say(f"Labels that look wrong: {result['suspected_labels']} ({path / 'doubts.csv'})")
    listed = f"Every photo of the pile: {path / 'pile.csv'}   all" if pile["counted"] else "All"
    say(f"{listed} figures: {path / 'result.json'}")
    say(f"Next: osp predict {path} NEW.jpg   osp sort {path} PILE --to FOLDER")


def _say_foreign(tested: dict[str, Any]) -> None:
    """How well foreign test photos are told from the others, where there are any."""
    if tested.get("auroc") is not None:
        accepted = f"{tested['foreign_accepted']:.0f} % of {tested['foreign']} get in"
        say(f"Foreign test photos: AUROC {tested['auroc']:.1f}; {accepted}, ", "")
        say(f"{tested['known_accepted']:.0f} % of the known ones do.")


def _share(part: dict[str, Any] | None) -> str:
    if part is None:
        return "unknown: one photo per class"
    return f"{part['accuracy']:.1f} % ({part['low']:.0f} to {part['high']:.0f}) of {part['images']}"


def _unequal(result: dict[str, Any]) -> bool:
    counts = result["classes"].values()
    return bool(max(counts) > 1.5 * min(counts))


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an `osp fit` or `osp train`.")],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGES...", help="Files, folders, patterns; - for names on standard input.")
    ],
    form: Annotated[str, typer.Option("--format", help="table, csv or jsonl.")] = "table",
    accept: Annotated[float, typer.Option(help=ACCEPT_HELP)] = 0.95,
) -> None:
    """Say for each image its class, how sure that is, and whether it belongs to any of the classes.

    Probabilities are calibrated. The OOD score is larger for what looks more foreign; above the threshold the decision
    is `out`. A file that cannot be read gets a row that says why, and the exit code is 1.

    Examples:

    - `osp predict run new/ --format csv > new.csv`

    - `osp predict run a.jpg 'holiday/**/*.jpg' --accept 0.99`

    - `find . -name '*.jpg' | osp predict run - --format jsonl`
    """
    check_environment()
    _one_of("--format", form, FORMATS)
    from osp.engine.progress import shown
    from osp.photos.cut import check_accept
    from osp.photos.predict import image_files, open_run

    check_accept(accept)
    files, notes = image_files(images, sys.stdin if "-" in images else ())
    for note in notes:
        complain(note)
    model = open_run(run)
    failed = 0
    with shown() as display:
        found = model.predict(files, accept, display.loading)
        for row in _rows(found, form, model.class_names):
            failed += row
    if failed:
        complain(f"{failed} of {len(files)} files could not be read.")
        raise typer.Exit(1)


def _rows(found: Iterator[Prediction], form: str, names: tuple[str, ...]) -> Iterator[bool]:
    """Print each prediction as it comes; True for one that failed."""
    table = csv.writer(sys.stdout)
    if form == "csv":
        table.writerow(("file", "class", "probability", "ood_score", "decision", "error"))
    elif form == "table":
        say(f"{'class':<16} {'prob.':>7} {'OOD':>6}  {'':<4} file")
    for each in found:
        said = each.decision
        verdict = "" if said is None else "in" if said.inside else "out"
        if form == "jsonl":
            print(json.dumps(_fields(each, names)))
        elif form == "csv":
            from osp.photos.tables import defused

            numbers = ("", "", "") if said is None else (said.label, f"{said.probability:.4f}", f"{said.ood_score:.4f}")
            cells = (each.file, *numbers, verdict, each.reason)
            table.writerow([defused(cell).encode("utf-8", "replace").decode() for cell in cells])
        elif said is None:
            say(f"{'unreadable':<16} {'':>7} {'':>6}  {'':<4} {printable(each.file)}: {each.reason}")
        else:
            label, sure = printable(said.label), f"{100 * said.probability:.1f} %"
            say(f"{label:<16} {sure:>7} {said.ood_score:>6.3f}  {verdict:<4} {printable(each.file)}")
        yield said is None
    sys.stdout.flush()


def _fields(each: Prediction, names: tuple[str, ...]) -> dict[str, Any]:
    if each.decision is None:
        return {"file": each.file, "error": each.reason}
    said = each.decision
    return {
        "file": each.file,
        "class": said.label,
        "probability": round(said.probability, 6),
        "ood_score": round(said.ood_score, 6),
        "in": said.inside,
        "probabilities": {name: round(p, 6) for name, p in zip(names, each.probabilities, strict=True)},
    }


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{option} {value!r} is unknown.{suggest(value, choices)}")


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
    """Sort a pile into folders by class; doubtful photos and foreign ones get folders of their own.

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
    _one_of("--as", kind, tuple(KINDS))
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
    from osp.photos.journal import has_journal
    from osp.photos.predict import decisions, open_run, worth_labeling
    from osp.photos.reading import list_pile
    from osp.photos.sorting import check_places, sort_pile

    if to is not None:
        check_places(pile, user_path(to))
    files = list_pile(pile).files
    resumed = to is not None and has_journal(user_path(to))  # a sort killed after its last move
    if not files and not resumed:
        raise UserError(f"There is no image in {printable(pile)}.")
    model = open_run(run)
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
    given = (each.decision for each in found if each.decision)
    done = sort_pile(given, user_path(to), action, sure, display.loading, pile=pile, trust_journal=trusted)
    if done.earlier:
        say(f"Photos that an earlier sort had put there already, counted below: {done.earlier:,}.")
    console().print(columns(*sorted(done.counts.items()), headings=("folder", "photos")))
    say(f"Table: {done.table}")
    if action != "csv":
        say(f"Undo: osp sort --undo {to}")
    failed = [*((each.file, each.reason) for each in found if each.decision is None), *done.failed]
    for file, reason in failed:
        complain(f"{printable(file)}: {reason}; it stays where it is.")
    if failed:
        raise typer.Exit(1)
