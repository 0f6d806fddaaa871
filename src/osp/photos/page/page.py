"""`osp report` of a run of `osp fit`: everything about it on one self-contained page.

Pictures need the photos where they were; where they are gone the page says so. Where it looks (Grad-CAM) also needs
torch and the backbone. All else comes from the run folder alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from osp.data.decode_pool import decode_all
from osp.errors import UserError, printable
from osp.files import write_text
from osp.photos.page import words
from osp.photos.page.galleries import by_class, by_score, disagreements, to_check
from osp.photos.page.reading import FittedRun, is_fit, read_fit
from osp.report.embedding import embed, spread
from osp.report.figure import COLORS, own_style
from osp.report.gallery import Gallery, Shot
from osp.report.histogram import draw_scores
from osp.report.page import check_out
from osp.report.pieces import THUMBNAIL, atlas_of, confusion_part, drawn, mark
from osp.report.template import picture_url, render

SIDE = 144
"""Of a photo in a gallery, in pixels."""
MOST_LABELED, MOST_PILE = 300, 500
"""Points on the map."""
MOST_LOOKS = 8


def write_photo_report(folder: Path, compare: Path | None = None, out: Path | None = None) -> Path:
    """Write the page of a fit, by default as `report.html` in its folder; returns its path."""
    run = read_fit(folder)
    if compare is not None and not is_fit(compare):
        raise UserError(f"--compare {compare} is no run of osp fit; a fit is compared with another fit.")
    other = None if compare is None else read_fit(compare)
    path = check_out(folder / "report.html" if out is None else out)
    write_text(path, photo_page(run, other))
    return path


class Pictures:
    """Photos by their files, each read once; counts those that are gone."""

    def __init__(self) -> None:
        self._found: dict[str, np.ndarray | None] = {}

    def read(self, files: Iterable[str]) -> None:
        """Read several at once: many are spread over processes."""
        new = [file for file in dict.fromkeys(files) if file not in self._found]
        done = 0
        for images, skipped in decode_all(new, SIDE):
            missing, pixels = {position for position, _ in skipped}, iter(images)
            for position in range(done, done + len(images) + len(skipped)):
                image = None if position in missing else np.ascontiguousarray(next(pixels).transpose(1, 2, 0))
                self._found[new[position]] = image
            done += len(images) + len(skipped)

    def __call__(self, file: str) -> np.ndarray | None:
        """uint8 H×W×3, the middle square; None where it cannot be had."""
        self.read([file])
        return self._found[file]

    def note(self) -> str:
        """A sentence on what is missing."""
        gone = sum(picture is None for picture in self._found.values())
        if not gone:
            return ""
        return f"{gone:,} of {len(self._found):,} photos are no longer where they were, and are not shown."


def photo_page(run: FittedRun, other: FittedRun | None = None) -> str:
    """The page as text."""
    pictures = Pictures()
    classes = [_gallery(each, pictures) for each in by_class(run)] if run.counted else []
    name = "" if other is None else words.name_of(other, run)
    disagreed = [] if other is None else disagreements(run, other, name)
    galleries = [_gallery(each, pictures) for each in (*to_check(run), *by_score(run), *disagreed)]
    looks, no_looks = _looks(run, other, name)
    plot = _map(run, pictures)
    with own_style():
        return render(
            "photos",
            title=words.title(run),
            sentences=words.sentences(run),
            tiles=words.tiles(run),
            numbers=words.table(run, other),
            compared=name or None,
            differences=[] if other is None else words.differences(run, other, name),
            colors=COLORS,
            names=run.shown_names,
            pile=_bars(run),
            classes=classes,
            galleries=[each for each in galleries if each["shots"]],
            histograms=_histograms(run),
            map=plot,
            confusions=_confusions(run) + (_confusions(other, name) if other else []),
            looks=looks,
            no_looks=no_looks,
            no_images=pictures.note(),
            left_out=[{"file": printable(file), "reason": printable(reason)} for file, reason in run.left_out[:20]],
            more_left_out=max(0, len(run.left_out) - 20),
            duplicates=int(run.result.get("duplicates") or 0),
            command=words.command(run),
            made_with=words.made_with(run),
        )


def _gallery(gallery: Gallery[str], pictures: Pictures) -> dict[str, Any]:
    def shown(shots: Sequence[Shot[str]]) -> list[dict[str, Any]]:
        found = ((shot, pictures(shot.where)) for shot in shots)
        return [
            {
                "image": picture_url(image, SIDE),
                "key": shot.key,
                "caption": shot.caption,
                "ood": shot.framed,
                "name": printable(shot.where),
            }
            for shot, image in found
            if image is not None
        ]

    return {
        "title": gallery.title,
        "note": gallery.note,
        "shots": shown(gallery.shots),
        "parts": [{"title": title, "shots": shown(shots)} for title, shots in gallery.parts],
        "style": None if gallery.color is None else mark(gallery.color)["style"],
        "key": gallery.color,
    }


def _bars(run: FittedRun) -> list[dict[str, Any]]:
    """How many photos of the pile look like each class, and how many foreign."""
    pile = run.result["pile_photos"]
    if not pile["counted"]:
        return []
    counts = [(mark(k)["style"], name, int(pile["per_class"].get(raw, 0)))
              for k, (raw, name) in enumerate(zip(run.names, run.shown_names, strict=True))]  # fmt: skip
    counts.append(("cood", "foreign", int(pile["out"])))
    most = max(count for *_, count in counts) or 1
    return [
        {"style": style, "name": name, "count": f"{count:,}", "share": round(100 * count / most, 1)}
        for style, name, count in counts
    ]


def _histograms(run: FittedRun) -> list[dict[str, str]]:
    limit = run.threshold
    if limit is None:
        return []
    known = [said.score for said in run.test if said.truth >= 0]
    foreign = [said.score for said in run.test if said.truth < 0]
    pile = np.array([run.pile[row].score for row in run.counted])
    groups = [
        ("The pile, and sorted photos", {"ID": run.known_scores, "unlabelled": pile},
         {"ID": "sorted, held out", "unlabelled": "pile"}),
        ("Test photos", {"ID": np.array(known), "OOD": np.array(foreign)}, {"ID": "known", "OOD": "foreign"}),
    ]  # fmt: skip
    found = []
    for title, scores, kinds in groups:
        if any(map(len, scores.values())):
            figure = Figure(figsize=(5, 3.2), layout="constrained", dpi=110)
            draw_scores(figure.subplots(), scores, limit, title, names=kinds)
            found.append({"title": title, "drawing": drawn(figure)})
    return found


def _map(run: FittedRun, pictures: Pictures) -> dict[str, Any] | None:
    """Sorted photos by class, photos of the pile by the class they look like, small, and foreign ones black."""
    sorted_rows, pile_rows = spread(len(run.labels), MOST_LABELED), spread(len(run.sample), MOST_PILE)
    features = np.concatenate([run.labeled[sorted_rows], run.sample_features[pile_rows]])
    if len(features) < 5:
        return None
    names = run.shown_names
    points: list[tuple[int, bool, str, str]] = [
        (int(run.labels[row]), True, run.labeled_files[row], f"sorted as {names[run.labels[row]]}")
        for row in sorted_rows
    ]
    for row in pile_rows:
        said = run.pile[int(run.sample[row])]
        text = f"{names[said.label]} {100 * said.probability:.0f} %; OOD score {said.score:.2f}"
        points.append((said.label if said.inside else -1, False, said.file, f"pile: {text}"))
    places = embed(features)
    order = sorted(range(len(points)), key=lambda i: (points[i][1], points[i][0] >= 0))  # sorted ones on top
    pictures.read(points[i][2] for i in order)
    images = [pictures(points[i][2]) for i in order]
    nothing = np.full((THUMBNAIL, THUMBNAIL, 3), 128, np.uint8)
    atlas = atlas_of([nothing if image is None else image for image in images]) if any(
        image is not None for image in images
    ) else None  # fmt: skip
    keys = [points[i][0] for i in order]
    chips = [
        {**mark(key), "name": names[key] if key >= 0 else "foreign", "count": keys.count(key)}
        for key in (*range(len(names)), -1)
        if key in keys
    ]
    drawn_points = []
    for i in order:
        key, labeled, _, _ = points[i]
        marked = mark(key)
        x, y = places[i]
        drawn_points.append({
            **marked,
            "style": marked["style"] + ("" if labeled else " pile"),
            "x": f"{15 + 670 * x:.1f}",
            "y": f"{15 + 530 * (1 - y):.1f}",
            "mistake": labeled,
        })  # fmt: skip
    return {
        "points": drawn_points,
        "chips": chips,
        "atlas": atlas is not None,
        "data": {**(atlas or {"atlas": None, "side": 0, "columns": 1}), "words": [points[i][3] for i in order]},
    }


def _confusions(run: FittedRun, name: str = "") -> list[dict[str, Any]]:
    """Of the held-out photos and of the test photos; with the name of a run that this one is compared with."""
    pairs: list[tuple[str, list[tuple[int, int]]]] = []
    if run.held_out is not None:
        held = np.flatnonzero(run.held_out.sum(axis=1) > 0)
        predicted = run.held_out[held].argmax(axis=1)
        pairs.append(("Sorted photos, each held out in turn", list(zip(run.labels[held], predicted, strict=True))))
    pairs.append(("Test photos", [(said.truth, said.label) for said in run.test if said.truth >= 0]))
    found = []
    for title, several in pairs:
        matrix = np.zeros((len(run.names), len(run.names)), np.int64)
        for truth, predicted_class in several:
            matrix[truth, predicted_class] += 1
        part = confusion_part(matrix, run.shown_names)
        if part is not None:
            heading = f"{name}: {title[0].lower()}{title[1:]}" if name else title
            found.append({"title": heading, "names": run.shown_names, **part})
    return found


def _looks(run: FittedRun, other: FittedRun | None, name: str) -> tuple[list[dict[str, Any]], str]:
    """Rows of Grad-CAM pictures of a test photo (or a sorted one) of each class, or why there are none."""
    try:
        from osp.photos.page.looks import look
    except ImportError as error:
        return [], f"Left out: {printable(error)}."
    try:
        return look(run, other, name, MOST_LOOKS), ""
    except UserError as error:
        return [], f"Left out: {printable(error)}"
