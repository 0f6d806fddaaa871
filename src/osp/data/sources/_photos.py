"""What `folder` and `pile` share: listed files with their classes, copies left out, decoded into image sets."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from osp.data.copies import choose, first_few
from osp.data.decoded import check_classes, decoded
from osp.data.imageset import ImageSet
from osp.data.listing import File, Found, kinds_in_words
from osp.data.source import Description, Request, per_class
from osp.errors import UserError

SIZE = 32


@dataclass
class Photos:
    """Files with their classes: three lists side by side."""

    root: Path
    classes: tuple[str, ...]
    files: list[File] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    """-1 where the class is unknown."""
    is_test: list[bool] = field(default_factory=list)
    found: Found = field(default_factory=Found)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Copies, each with the reason."""
    notes: list[str] = field(default_factory=list)
    """Sentences on what was left out."""

    def add(self, found: Found, label: int, test: bool) -> None:
        """The files of one folder."""
        self.found.add(found)
        self.files += found.files
        self.labels += [label] * len(found.files)
        self.is_test += [test] * len(found.files)

    def leave_out_copies(self) -> None:
        """Keep each image once, and say what was left out or passed over."""
        copies, unclear = choose(self.files, self.labels, self.is_test)
        near = [os.path.relpath(file.path, self.root) for file in self.files]
        if copies:
            what = "1 file is a copy and was" if len(copies) == 1 else f"{len(copies)} files are copies and were"
            pairs = [f"{near[copy]} = {near[kept]}" for copy, kept in sorted(copies.items())]
            self.notes.append(f"In {self.root} {what} left out ({first_few(pairs)}).")
        if unclear:
            self.notes.append(
                f"In {self.root} {len(unclear)} files show images that lie in the folders of several classes; "
                f"they were left out, since nobody knows which is right ({first_few([near[i] for i in unclear])})."
            )
        reasons = {copy: f"the same image as {near[kept]}" for copy, kept in copies.items()}
        reasons |= dict.fromkeys(unclear, "the same image lies in the folder of another class, too")
        self.left_out = [(self.files[i].path, reasons[i]) for i in sorted(reasons)]
        keep = [i for i in range(len(self.files)) if i not in reasons]
        self.files, self.labels, self.is_test = (
            [self.files[i] for i in keep],
            [self.labels[i] for i in keep],
            [self.is_test[i] for i in keep],
        )
        if passed := self.found.passed_over:
            kinds = ", ".join(f"{count} {kind}" for kind, count in passed.most_common())
            self.notes.append(
                f"Files of other kinds in {self.root} were passed over: {sum(passed.values())} ({kinds}). "
                f"Images are {kinds_in_words()}."
            )
        if links := self.found.links:
            some = first_few([os.path.relpath(link, self.root) for link in links])
            self.notes.append(
                f"Linked folders in {self.root} that lead out of their class or pile, or back into the set, were not "
                f"followed: {len(links)} ({some}). Put the images themselves there, or name their folder."
            )


def describe_photos(request: Request, photos: Photos) -> Description:
    """Counts of files; those that cannot be read are found only by `load_photos`."""
    labels, is_test = np.array(photos.labels, np.int64), np.array(photos.is_test, bool)
    train, test = (per_class(labels[chosen], len(photos.classes)) for chosen in (~is_test, is_test))
    side = request.size or SIZE
    return Description(
        request.name,
        photos.classes,
        train,
        test if is_test.any() else None,
        (3, side, side),
        train_unknown=int((labels[~is_test] < 0).sum()),
        test_unknown=int((labels[is_test] < 0).sum()),
        notes=tuple(photos.notes),
    )


def load_photos(request: Request, photos: Photos) -> tuple[ImageSet, ImageSet | None]:
    """The training and the test set; None where no test image was set aside."""
    for note in photos.notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    labels, is_test = np.array(photos.labels, np.int64), np.array(photos.is_test, bool)
    chosen = [np.flatnonzero(~is_test), np.flatnonzero(is_test)]
    parts = [[photos.files[i] for i in rows] for rows in chosen[: 2 if is_test.any() else 1]]
    result = decoded(request.name, request.root, parts, request.size or SIZE, request.progress)
    if not len(result.parts[0].images):
        path, reason = (result.parts[0].skipped or photos.left_out)[0]
        raise UserError(f"None of the images in {request.root} could be read ({path}: {reason}).")
    sets: list[ImageSet] = []
    for rows, part in zip(chosen, result.parts, strict=False):
        own = labels[rows][part.kept] if photos.classes else None
        if own is not None and not sets:
            check_classes(own, photos.classes, request.root, (*part.skipped, *photos.left_out))
        sets.append(
            ImageSet(
                request.name,
                part.images,
                own,
                photos.classes,
                result.mean,
                result.std,
                files=part.files,
                skipped=part.skipped,
                left_out=tuple(photos.left_out) if not sets else (),
                pixels=part.pixels,
            )
        )
    return sets[0], sets[1] if len(sets) > 1 and len(sets[1]) else None
