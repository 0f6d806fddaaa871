"""`osp.report.write_report`: everything about a run, trained or fitted, on one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from osp.errors import UserError, printable
from osp.files import write_text
from osp.report.album import SIDE, Album, Picture
from osp.report.charts import draw_scores
from osp.report.figure import COLORS, own_style
from osp.report.fitted import FittedView
from osp.report.html import THUMBNAIL, atlas_of, confusion_part, drawn, mark, picture_url, render
from osp.report.trained import TrainedView
from osp.report.view import Gallery, Shot, View
from osp.runs.run import Run


def write_report(run: Run | str | Path, compare: Run | str | Path | None = None, out: str | Path | None = None) -> Path:
    """Write the page of a finished run, by default as `report.html` in its folder; returns its path.

    `run` is the folder of an `osp train` or `osp fit`, or what these return; `compare` another one of the same kind.
    Galleries and Grad-CAM need the images; where they are gone the page says so.
    """
    view = view_of(run)
    other = None if compare is None else view_of(compare)
    if other is not None and type(other) is not type(view):
        kind = "fit" if isinstance(view, FittedView) else "train"
        raise UserError(f"--compare {other.run.path} is no run of osp {kind}; compare runs of one kind.")
    path = check_out(view.run.path / "report.html" if out is None else Path(out))
    write_text(path, page(view, other))
    return path


def view_of(run: Run | str | Path) -> View:
    """What a page shows of a run."""
    found = run if isinstance(run, Run) else Run.read(run)
    return FittedView(found) if found.decided is None else TrainedView(found)


def check_out(path: Path) -> Path:
    """The path, if a page can be written there."""
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; name a file.")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}.")
    return path


def page(view: View, other: View | None = None) -> str:
    """The page as text."""
    name = "" if other is None else beside(view, other)
    galleries = [_gallery(each, view.album) for each in view.galleries(other, name)]
    looks, no_looks = _looks(view, other, name)
    plot = _map(view)
    with own_style():
        return render(
            view.template,
            title=view.title,
            sentences=view.sentences(),
            numbers=_numbers(view, other),
            compared=name or None,
            colors=COLORS,
            names=view.names,
            histograms=_histograms(view),
            map=plot,
            confusions=_confusions(view) + ([] if other is None else _confusions(other, name)),
            classes=[each for each in galleries if each["key"] is not None],
            groups=[each for each in galleries if each["parts"] and each["key"] is None],
            galleries=[each for each in galleries if each["shots"]],
            looks=looks,
            no_looks=no_looks,
            no_images=view.album.problem,
            **view.more(other, name),
        )


def beside(view: View, other: View) -> str:
    """What the run that this one is compared with is called."""
    return printable(other.run.path) if other.called == view.called else other.called


def _numbers(view: View, other: View | None) -> list[dict[str, str]]:
    """The figures that either run has."""
    mine, theirs = view.numbers(), {} if other is None else other.numbers()
    pairs = ((name, value, theirs.get(name, "")) for name, value in mine.items())
    return [{"name": name, "value": a or "–", "other": b or "–"} for name, a, b in pairs if a or b]


def _histograms(view: View) -> list[dict[str, str]]:
    found = []
    for each in view.histograms():
        if any(map(len, each.scores.values())) and view.threshold is not None:
            figure = Figure(figsize=(5, 3.2), layout="constrained", dpi=110)
            draw_scores(figure.subplots(), each.scores, view.threshold, each.title, each.score, each.names)
            found.append({"title": each.title, "drawing": drawn(figure)})
    return found


def _map(view: View) -> dict[str, Any] | None:
    """Points of the map, those on top last, with their thumbnails in one picture."""
    found = view.map()
    if found is None:
        return None
    points = found.points
    order = sorted(range(len(points)), key=lambda i: (not points[i].small, points[i].key >= 0))  # OOD below
    images = view.album.read(points[i].where for i in order)
    nothing = np.full((THUMBNAIL, THUMBNAIL, 3), 128, np.uint8)
    there = any(image is not None for image in images)
    atlas = atlas_of([nothing if image is None else image for image in images]) if there else None
    keys = [point.key for point in points]
    return {
        "points": [
            {
                **mark(points[i].key),
                "style": mark(points[i].key)["style"] + (" pile" if points[i].small else ""),
                "x": f"{15 + 670 * found.places[i][0]:.1f}",
                "y": f"{15 + 530 * (1 - found.places[i][1]):.1f}",
                "mistake": points[i].marked,
            }
            for i in order
        ],
        "chips": [
            {**mark(key), "name": view.names[key] if key >= 0 else found.unknown, "count": keys.count(key)}
            for key in (*range(len(view.names)), -1)
            if key in keys
        ],
        "unknown": found.unknown,
        "atlas": there,
        "data": {**(atlas or {"atlas": None, "side": 0, "columns": 1}), "words": [points[i].words for i in order]},
    }


def _confusions(view: View, name: str = "") -> list[dict[str, Any]]:
    """With the name of a run that this one is compared with."""
    found = []
    for title, matrix in view.confusions():
        part = confusion_part(matrix, view.names)
        if part is not None:
            heading = f"{name}: {title[:1].lower()}{title[1:]}".removesuffix(": ") if name else title
            found.append({"title": heading, "names": view.names, **part})
    return found


def _gallery(gallery: Gallery, album: Album) -> dict[str, Any]:
    def pictured(shots: Sequence[Shot]) -> list[dict[str, Any]]:
        return [
            {
                "image": picture_url(image, SIDE),
                "key": shot.key,
                "caption": shot.caption,
                "ood": shot.framed,
                "name": album.name(shot.where),
            }
            for shot, image in zip(shots, album.read(shot.where for shot in shots), strict=True)
            if image is not None
        ]

    return {
        "title": gallery.title,
        "note": gallery.note,
        "shots": pictured(gallery.shots),
        "parts": [{"title": title, "shots": pictured(shots)} for title, shots in gallery.parts],
        "style": None if gallery.color is None else mark(gallery.color)["style"],
        "key": gallery.color,
    }


def _looks(view: View, other: View | None, name: str) -> tuple[list[dict[str, Any]], str]:
    """Rows of Grad-CAM pictures, or why there are none."""
    try:
        from osp.report.looks import look

        found = look(view, other)
    except (UserError, ImportError) as error:
        return [], f"Left out: {printable(error)}{'' if isinstance(error, UserError) else '.'}"

    def row(name: str, pictures: Sequence[Picture | None], words: Sequence[str]) -> dict[str, Any]:
        cells = [
            {"image": None if picture is None else picture_url(picture, SIDE), "caption": word}
            for picture, word in zip(pictures, words, strict=True)
        ]
        return {"name": name, "cells": cells}

    nothing = [""] * len(found.images)
    first, own = view.look_rows
    rows = [row(first, found.images, found.captions)]
    rows.append(row(own if other is None else "this run", found.own, found.own_said))
    if found.baseline is not None and found.baseline_said is not None:
        rows.append(row(name, found.baseline, found.baseline_said))
    if found.partners is not None and found.partner_images is not None:
        rows.append(row("paired OOD feature: where", found.partners, nothing))
        rows.append(row("... and its image", found.partner_images, nothing))
    return rows, ""
