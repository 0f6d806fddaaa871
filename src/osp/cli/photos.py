"""`osp fit` and `osp predict`: your own photographs."""

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

    from osp.models.model import Prediction

FORMATS = ("table", "csv", "jsonl")
ACCEPT_HELP = "Share of the known classes that the OOD threshold lets through, such as 0.99 to lose fewer of them."


def fit(
    sorted_dir: Annotated[Path, typer.Argument(metavar="SORTED", help="Your sorted photos: one folder per class.")],
    pile: Annotated[Path | None, typer.Argument(metavar="[PILE]", help="Unsorted photos, many of no class.")] = None,
    out: Annotated[Path, typer.Option(help="New folder for the model and the results.")] = Path("run"),
    test: Annotated[
        Path | None, typer.Option(help="Photos to test on: folders named like the classes, others are unknown.")
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

    - `osp fit sorted/ pile/ --out run --test for-testing/`

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
        from osp.report import write_report

        say(f"Page: {write_report(run)}")
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
    from osp.models.trained import load_predictor
    from osp.photos.decisions import figures_on
    from osp.photos.fit import no_pile
    from osp.photos.folder import check_free
    from osp.photos.photographs import list_pile, list_sorted, list_test, without_copies
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
            figures = figures_on(load_predictor(run.path), tested, classes, display.loading)
        say(f"Test photos: accuracy {_share(figures)}.")
        _say_unknown(figures)
    say(f"Run: {run.path}")
    if page:
        from osp.report import write_report

        say(f"Page: {write_report(run)}")


def _print_fit(result: dict[str, Any], path: Path) -> None:
    from osp.photos.fit import probably_unknown

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
    _say_unknown(tested)
    pile = result["pile_photos"]
    if pile["counted"]:
        listed = ", ".join(f"{name} {count}" for name, count in pile["per_class"].items())
        say(f"The pile: {pile['in']:,} of {pile['counted']:,} photos look like one of the classes ({listed}); ", "")
        say(f"estimated share {100 * pile['share']:.0f} %.")
        if doubt := probably_unknown(pile["in"], pile["counted"], pile["share"], tested):
            say(doubt)
        if not result["threshold_photos"]:
            say("That is a guess: with one photo per class the threshold rests on the pile alone.")
    if result["suspected_labels"]:
        say(f"Labels that look wrong: {result['suspected_labels']} ({path / 'doubts.csv'})")
    listed = f"Every photo of the pile: {path / 'pile.csv'}   all" if pile["counted"] else "All"
    say(f"{listed} figures: {path / 'result.json'}")
    say(f"Next: osp predict {path} NEW.jpg   osp sort {path} PILE --to FOLDER")


def _say_unknown(tested: dict[str, Any]) -> None:
    """How well unknown test photos are separated from the others, where there are any."""
    if tested.get("auroc") is not None:
        accepted = f"{tested['foreign_accepted']:.0f} % of {tested['foreign']} are accepted"
        say(f"Unknown test photos: AUROC {tested['auroc']:.1f}; {accepted}, ", "")
        say(f"{tested['known_accepted']:.0f} % of the known ones are.")


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

    Probabilities are calibrated. The OOD score is larger for what looks more unknown; above the threshold the decision
    is `out`. A file that cannot be read gets a row that says why, and the exit code is 1.

    Examples:

    - `osp predict run new/ --format csv > new.csv`

    - `osp predict run a.jpg 'holiday/**/*.jpg' --accept 0.99`

    - `find . -name '*.jpg' | osp predict run - --format jsonl`
    """
    check_environment()
    one_of("--format", form, FORMATS)
    from osp.engine.progress import shown
    from osp.evaluate.thresholds import check_accept
    from osp.models import load
    from osp.photos.photographs import image_files

    check_accept(accept)
    files, notes = image_files(images, sys.stdin if "-" in images else ())
    for note in notes:
        complain(note)
    model = load(run)
    failed = 0
    with shown() as display:
        found = model.predict_files(files, accept, display.loading)
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
        verdict = "" if each.reason else "in" if each.inside else "out"
        if form == "jsonl":
            print(json.dumps(_fields(each, names)))
        elif form == "csv":
            from osp.tables import defused

            numbers = ("",) * 3 if each.reason else (each.label, f"{each.probability:.4f}", f"{each.ood_score:.4f}")
            cells = (each.file, *numbers, verdict, each.reason)
            table.writerow([defused(cell).encode("utf-8", "replace").decode() for cell in cells])
        elif each.reason:
            say(f"{'unreadable':<16} {'':>7} {'':>6}  {'':<4} {printable(each.file)}: {each.reason}")
        else:
            label, sure = printable(each.label), f"{100 * each.probability:.1f} %"
            say(f"{label:<16} {sure:>7} {each.ood_score:>6.3f}  {verdict:<4} {printable(each.file)}")
        yield bool(each.reason)
    sys.stdout.flush()


def _fields(each: Prediction, names: tuple[str, ...]) -> dict[str, Any]:
    if each.reason:
        return {"file": each.file, "error": each.reason}
    return {
        "file": each.file,
        "class": each.label,
        "probability": round(each.probability, 6),
        "ood_score": round(each.ood_score, 6),
        "in": each.inside,
        "probabilities": {name: round(p, 6) for name, p in zip(names, each.probabilities, strict=True)},
    }


def one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{option} {value!r} is unknown.{suggest(value, choices)}")
