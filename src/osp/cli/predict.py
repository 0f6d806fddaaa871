"""`osp predict`: what a model says of images, as a table, CSV, lines of JSON or tasks for Label Studio."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from osp.cli.lists import check_environment
from osp.cli.text import complain, say
from osp.errors import UserError, printable, suggest
from osp.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from osp.models.model import Prediction

FORMATS = ("table", "csv", "jsonl", "label-studio")
ACCEPT_HELP = "Share of the known classes that the OOD threshold lets through, such as 0.99 to lose fewer of them."


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an `osp fit` or `osp train`.")],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGES...", help="Files, folders, patterns; - for names on standard input.")
    ],
    form: Annotated[str, typer.Option("--format", help="table, csv, jsonl or label-studio.")] = "table",
    accept: Annotated[float, typer.Option(help=ACCEPT_HELP)] = 0.95,
) -> None:
    """Say for each image its class, how sure that is, and whether it belongs to any of the classes.

    Probabilities are calibrated. The OOD score is larger for what looks more unknown; above the threshold the decision
    is `out`. A file that cannot be read gets a row that says why, and the exit code is 1.

    Examples:

    - `osp predict run new/ --format csv > new.csv`

    - `osp predict run a.jpg 'holiday/**/*.jpg' --accept 0.99`

    - `find . -name '*.jpg' | osp predict run - --format jsonl`

    - `osp predict run new/ --format label-studio > tasks.json` (to be imported there and corrected)
    """
    check_environment()
    one_of("--format", form, FORMATS)
    from osp.engine.progress import shown
    from osp.evaluate.thresholds import check_accept
    from osp.models import load
    from osp.photos.decisions import predict_cached
    from osp.photos.photographs import image_files

    check_accept(accept)
    files, notes = image_files(images, sys.stdin if "-" in images else ())
    for note in notes:
        complain(note)
    model = load(run)
    with shown() as display:
        found = predict_cached(model, files, accept, display.loading)
        failed = sum(_rows(found, form, model.class_names))
    if failed:
        complain(f"{failed} of {len(files)} files could not be read.")
        raise typer.Exit(1)


def _rows(found: Iterator[Prediction], form: str, names: tuple[str, ...]) -> Iterator[bool]:
    """Print each prediction as it comes; True for one that failed."""
    table = csv.writer(sys.stdout)
    if form == "csv":
        table.writerow(("file", "class", "probability", "ood_score", "decision", "error", "group", "sure"))
    elif form == "table":
        say(f"{'class':<16} {'sure':>7} {'OOD':>6}  {'':<4} file")
    tasks = 0
    for each in found:
        verdict = "" if each.reason else "in" if each.inside else "out"
        if form == "jsonl":
            print(json.dumps(_fields(each, names)))
        elif form == "label-studio":
            if each.reason:
                complain(f"{printable(each.file)}: {each.reason}")
            else:
                print("," if tasks else "[", json.dumps(_task(each)))
                tasks += 1
        elif form == "csv":
            from osp.tables import defused

            numbers = ("",) * 3 if each.reason else (each.label, f"{each.probability:.4f}", f"{each.ood_score:.4f}")
            cells = (each.file, *numbers, verdict, each.reason, each.group, "" if each.reason else f"{each.sure:.4f}")
            shown = printable if sys.stdout.isatty() else str  # a file has the names as they are
            table.writerow([shown(defused(cell).encode("utf-8", "replace").decode()) for cell in cells])
        elif each.reason:
            say(f"{'unreadable':<16} {'':>7} {'':>6}  {'':<4} {printable(each.file)}: {each.reason}")
        else:
            label, sure = printable(each.label), f"{100 * each.sure:.1f} %"
            where = f"{printable(each.file)}{f'   ({each.group})' if each.group else ''}"
            say(f"{label:<16} {sure:>7} {each.ood_score:>6.3f}  {verdict:<4} {where}")
        yield bool(each.reason)
    if form == "label-studio":
        print("]" if tasks else "[]")
    sys.stdout.flush()


def _task(each: Prediction) -> dict[str, Any]:
    """A task with its prediction, as Label Studio imports it; docs/photos.md has the labeling configuration."""
    from osp.photos.labels import NONE

    place = os.path.abspath(each.file).lstrip(os.sep)
    choice = each.label if each.inside else NONE
    result = {"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [choice]}}
    said: dict[str, Any] = {"model_version": f"osp {__version__}", "result": [result]}
    if each.inside:
        said["score"] = round(each.sure, 6)
    elif each.belongs is not None:
        said["score"] = round(1 - each.belongs, 6)
    data = {
        "image": f"/data/local-files/?d={quote(os.fsencode(place))}",
        "file": printable(each.file),
        "ood_score": round(each.ood_score, 6),
    }
    return {"data": data, "predictions": [said]}


def _fields(each: Prediction, names: tuple[str, ...]) -> dict[str, Any]:
    if each.reason:
        return {"file": each.file, "error": each.reason}
    return {
        "file": each.file,
        "class": each.label,
        "probability": round(each.probability, 6),
        "ood_score": round(each.ood_score, 6),
        "in": each.inside,
        "group": each.group or None,
        "sure": round(each.sure, 6),
        "probabilities": {name: round(p, 6) for name, p in zip(names, each.probabilities, strict=True)},
    }


def one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{option} {value!r} is unknown.{suggest(value, choices)}")
