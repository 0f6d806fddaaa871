"""`osp.report.write_report`: everything about a run on one self-contained page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from osp.errors import UserError, printable
from osp.files import write_text
from osp.report import summary
from osp.report.curves import curves
from osp.report.embedding import FeatureMap, feature_map
from osp.report.figure import COLORS, own_style
from osp.report.galleries import Row, galleries
from osp.report.histogram import draw_scores
from osp.report.pieces import atlas_of, confusion_part, drawn, mark
from osp.report.template import picture_url, render
from osp.runs.run import Run

if TYPE_CHECKING:
    from osp.engine.data import Data

NO_PREDICTIONS = "The run was kept without its predictions."


def write_report(run_folder: str | Path, compare: str | Path | None = None, out: str | Path | None = None) -> Path:
    """Write the page of a finished run, by default as `report.html` in its folder; returns its path.

    `compare` names the folder of a baseline. Galleries and Grad-CAM need the run's images; where they are gone the page
    says so.
    """
    run = Run.read(run_folder)
    other = None if compare is None else Run.read(compare)
    path = check_out(run.path / "report.html" if out is None else Path(out))
    write_text(path, page(run, other))
    return path


def check_out(path: Path) -> Path:
    """The path, if a page can be written there."""
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; name a file.")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}.")
    return path


def page(run: Run, other: Run | None = None) -> str:
    """The page as text."""
    data, no_images = images_of(run)
    looks, no_looks = _looks(run, other, data, no_images)
    with own_style():
        return render(
            "report",
            title=summary.title(run),
            sentences=summary.sentences(run),
            warnings=[printable(each) for each in run.result.get("warnings") or []],
            numbers=summary.table(run, other),
            compared=None if other is None else summary.title(other),
            colors=COLORS,
            names=run.class_names,
            curves=[{"title": name, "drawing": drawn(figure)} for name, figure in curves(run.metrics).items()],
            histograms=_histograms(run),
            threshold_note=summary.threshold_note(run),
            no_predictions=NO_PREDICTIONS,
            map=_map(run, data),
            no_map=NO_PREDICTIONS if run.predictions is None else "There are too few test images for a map.",
            confusion=_confusion(run),
            galleries=_galleries(run, data),
            no_images=no_images,
            looks=looks,
            no_looks=no_looks,
            has_partners=bool(run.bank),
            recipe=_recipe(run),
            command="osp train --recipe recipe.yaml --out again",
            made_with=summary.made_with(run),
        )


def images_of(run: Run) -> tuple[Data | None, str]:
    """The images, or why they are not to be had."""
    if run.predictions is None:
        return None, NO_PREDICTIONS
    try:
        from osp.engine.data import open_again

        return open_again(run), ""
    except UserError as error:
        return None, f"The images are not at hand: {printable(error)}"
    except ImportError as error:
        return None, f"Images cannot be shown here: {printable(error)}."


def _histograms(run: Run) -> list[dict[str, str]]:
    predictions = run.predictions
    if predictions is None:
        return []
    score, truth = predictions.score, run.truth
    test = {name: predictions.groups[key].scores[score] for key, name in (("test", "ID"), ("test_ood", "OOD"))}
    pool = predictions.pool.scores[score]
    kinds = {"unlabelled": pool} if truth is None else {"ID": pool[~truth], "OOD": pool[truth]}
    found = []
    for title, scores in (("Test images", test), ("Unlabelled images", kinds)):
        if any(map(len, scores.values())):
            figure = Figure(figsize=(5, 3.2), layout="constrained", dpi=110)
            draw_scores(figure.subplots(), scores, predictions.threshold, title, printable(score))
            found.append({"title": title, "drawing": drawn(figure)})
    return found


def _map(run: Run, data: Data | None) -> dict[str, Any] | None:
    found = feature_map(run)
    if found is None or run.predictions is None:
        return None
    predicted, scores = _said(run, found)
    names = run.class_names
    words = []
    for number, taken, score in zip(found.classes, predicted, scores, strict=True):
        truth = names[number] if number >= 0 else "foreign" if "test" in found.foreign else "unlabelled"
        words.append(f"{truth}; taken for {names[taken]}; OOD score {score:.3g}")
    foreign = scores > run.predictions.threshold
    wrong = np.where(found.classes >= 0, predicted != found.classes, ~foreign & ("test" in found.foreign))
    points = [
        {**mark(int(number)), "x": f"{15 + 670 * x:.1f}", "y": f"{15 + 530 * (1 - y):.1f}", "mistake": bool(bad)}
        for number, (x, y), bad in zip(found.classes, found.places, wrong, strict=True)
    ]
    order = sorted(range(len(points)), key=lambda i: found.classes[i] >= 0)  # OOD below, as in the paper
    shots = _rows(found, run)
    atlas = None if data is None else atlas_of(pictures(data, [shots[i] for i in order]))
    thumbnails = {"atlas": None, "side": 0, "columns": 1} if atlas is None else atlas
    present = [number for number in range(len(names)) if (found.classes == number).any()]
    chips = [{**mark(n), "name": names[n], "count": int((found.classes == n).sum())} for n in present]
    if (found.classes < 0).any():
        chips.append({**mark(-1), "name": found.foreign, "count": int((found.classes < 0).sum())})
    return {
        "points": [points[i] for i in order],
        "chips": chips,
        "foreign": found.foreign,
        "atlas": atlas is not None,
        "data": {**thumbnails, "words": [words[i] for i in order]},
    }


def _said(run: Run, found: FeatureMap) -> tuple[np.ndarray, np.ndarray]:
    """Predicted class and OOD score of each point."""
    assert run.predictions is not None
    predictions, score = run.predictions, run.predictions.score
    sources = {
        "pool": (predictions.pool.predicted, predictions.pool.scores[score]),
        **{name: (group.predicted, group.scores[score]) for name, group in predictions.groups.items()},
    }
    pairs = [
        (sources[group][0][row], sources[group][1][row]) for group, row in zip(found.groups, found.rows, strict=True)
    ]
    return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])


def _rows(found: FeatureMap, run: Run) -> list[Row]:
    assert run.predictions is not None
    ids = {"pool": run.predictions.pool.ids} | {name: group.ids for name, group in run.predictions.groups.items()}
    return [Row(group != "pool", int(ids[group][row])) for group, row in zip(found.groups, found.rows, strict=True)]


def pictures(data: Data, rows: Iterable[Row]) -> list[np.ndarray]:
    """The images as uint8 H×W×3, in order."""
    from osp.report.looks import plain

    chosen = list(rows)
    found: dict[Row, np.ndarray] = {}
    for test, source in ((True, data.test), (False, data.train)):
        numbers = sorted({row.number for row in chosen if row.test is test})
        for number, image in zip(numbers, source.take(numbers).numpy(), strict=True):
            found[Row(test, number)] = plain(image)
    return [found[row] for row in chosen]


def _confusion(run: Run) -> dict[str, Any] | None:
    stored = run.result.get("confusion")
    names = run.class_names
    if stored is None and (test := run.group("test")) is not None and test.targets is not None:
        from osp.evaluate.metrics import confusion_matrix

        stored = confusion_matrix(test.targets, test.predicted, len(names)).tolist()
    return confusion_part(np.array(stored if stored is not None else []), names)


def _galleries(run: Run, data: Data | None) -> list[dict[str, Any]]:
    if data is None:
        return []
    found = galleries(run)
    images = iter(pictures(data, (shot.where for gallery in found for shot in gallery.shots)))
    files = data.source.files or ()
    return [
        {
            "title": gallery.title,
            "note": gallery.note,
            "shots": [
                {
                    "image": picture_url(next(images)),
                    "key": shot.key,
                    "caption": shot.caption,
                    "ood": shot.framed,
                    "name": _file(files, shot.where),
                }
                for shot in gallery.shots
            ],
        }
        for gallery in found
    ]


def _file(files: Sequence[str], row: Row) -> str:
    return printable(files[row.number]) if not row.test and row.number < len(files) else ""


def _looks(run: Run, other: Run | None, data: Data | None, no_images: str) -> tuple[list[dict[str, Any]], str]:
    """Rows of Grad-CAM pictures, or why there are none."""
    if data is None:
        return [], no_images
    if not len(data.split.test):
        return [], "There are no test images to look at."
    from osp.report.looks import look

    try:
        found = look(run, other, data=data)
    except UserError as error:
        return [], f"Left out: {printable(error)}"

    def row(name: str, pictures: Sequence[np.ndarray | None], words: Sequence[str]) -> dict[str, Any]:
        cells = [
            {"image": None if picture is None else picture_url(picture), "caption": word}
            for picture, word in zip(pictures, words, strict=True)
        ]
        return {"name": name, "cells": cells}

    nothing = [""] * len(found.images)
    rows = [row("image", found.images, [found.names[number] for number in found.targets])]
    rows.append(row("this run" if other is not None else "Grad-CAM", found.own, found.own_said))
    if other is not None and found.baseline is not None and found.baseline_said is not None:
        rows.append(row(summary.title(other), found.baseline, found.baseline_said))
    if found.partners is not None and found.partner_images is not None:
        rows.append(row("paired OOD feature: where", found.partners, nothing))
        rows.append(row("... and its image", found.partner_images, nothing))
    return rows, ""


def _recipe(run: Run) -> str:
    """The recipe as it was written, or the plan's."""
    try:
        text = run.folder.recipe.read_text(encoding="utf-8", errors="replace")
    except OSError:
        from osp.recipe import Recipe

        text = Recipe(**run.plan.recipe).dump()
    return printable(text, lines=True).strip()
