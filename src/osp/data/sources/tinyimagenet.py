"""Tiny ImageNet: 200 classes of ImageNet, 500 training and 50 validation images each; validation serves as test.

The class numbers follow wnids.txt, of which the paper takes the first hundred as ID. Images of any size are resized
(the paper: 32x32).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from osp.data.folders import File, list_classes, list_images
from osp.data.from_files import check_classes, decoded
from osp.data.images import ImageSet
from osp.data.published import Published
from osp.data.source import Description, Remote, Request, SplitDefaults
from osp.errors import UserError

FOLDER = "tiny-imagenet-200"
REMOTE = Remote("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", unpacks=FOLDER)
AGAIN = f"Fetch {REMOTE.file} again."
MOMENTS = {"mean": (0.480245, 0.44807, 0.397548), "std": (0.27172, 0.265269, 0.27397)}

Labeled = tuple[list[File], np.ndarray]


class TinyImageNet(Published):
    """Image files in folders by class, and text files that name the classes."""

    def has(self, folder: Path) -> bool:
        return (folder / "wnids.txt").is_file() and (folder / "train").is_dir()

    def description(self, folder: Path, request: Request) -> Description:
        wnids = _wnids(folder)
        train, test = (part(folder, wnids)[1] for part in (_train, _validation))
        return Description.of(request.name, _class_names(folder, wnids), train, test, shape=self.sized(request))

    def read(self, folder: Path, request: Request) -> tuple[ImageSet, ImageSet | None]:
        """Decode and resize once; map the pixels after that."""
        wnids = _wnids(folder)
        parts = [_train(folder, wnids), _validation(folder, wnids)]
        train, test = decoded(request, folder, parts, _class_names(folder, wnids), **MOMENTS)
        check_classes(train, wnids, folder / "train")
        if not len(test):
            raise UserError(f"{folder / 'val'} holds no image that can be read. {AGAIN}")
        return train, test


def _wnids(folder: Path) -> list[str]:
    path = folder / "wnids.txt"
    wnids = path.read_text("utf-8", errors="replace").split()
    if not wnids:
        raise UserError(f"{path} is empty. {AGAIN}")
    doubled = [wnid for wnid, count in Counter(wnids).items() if count > 1]
    if doubled:
        raise UserError(f"{path} names the class {doubled[0]} twice. {AGAIN}")
    return wnids


def _train(folder: Path, wnids: list[str]) -> Labeled:
    files: list[File] = []
    counts = []
    for wnid in wnids:
        where = folder / "train" / wnid
        images = list_images(where / "images" if (where / "images").is_dir() else where) if where.is_dir() else []
        if not images:
            raise UserError(f"The class {wnid} has no image in {where}, but is listed in wnids.txt.")
        files += images
        counts.append(len(images))
    return files, np.repeat(np.arange(len(wnids), dtype=np.int64), counts)


def _validation(folder: Path, wnids: list[str]) -> Labeled:
    """As published, with val_annotations.txt, or sorted into folders by class as many people keep it."""
    number = {wnid: index for index, wnid in enumerate(wnids)}
    where, notes = folder / "val", folder / "val" / "val_annotations.txt"
    if not where.is_dir():
        raise UserError(f"{where} is missing. {AGAIN}")
    if not notes.is_file() or not (where / "images").is_dir():
        found = list_classes(where)[0]
        listed = [(file, number[wnid]) for wnid, each in found.items() if wnid in number for file in each.files]
        if not listed:
            raise UserError(f"{notes} or {where / 'images'} is missing. {AGAIN}")
        return [file for file, _ in listed], np.array([label for _, label in listed], dtype=np.int64)
    lines = (line.split("\t") for line in notes.read_text("utf-8", errors="replace").splitlines() if line.strip())
    wnid_of = {fields[0]: fields[1] if len(fields) > 1 else "" for fields in lines}
    files = list_images(where / "images")
    labels = np.empty(len(files), dtype=np.int64)
    skip = len(str(where / "images")) + 1
    for index, file in enumerate(files):
        wnid = wnid_of.get(file.path[skip:])
        if wnid not in number:
            said = "has no line" if wnid is None else f"is of the class {wnid!r}, which wnids.txt does not list,"
            raise UserError(f"{file.path} {said} in {notes}. {AGAIN}")
        labels[index] = number[wnid]
    return files, labels


def _class_names(folder: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first word for each class; with its number where two classes share it (there are two kinds of crane)."""
    words = {wnid: wnid for wnid in wnids}
    path = folder / "words.txt"
    if path.is_file():
        for line in path.read_text("utf-8", errors="replace").splitlines():
            wnid, _, text = line.partition("\t")
            if wnid in words and text.strip():
                words[wnid] = text.split(",")[0].strip()
    seen = Counter(words.values())
    return tuple(word if seen[word] == 1 else f"{word} ({wnid})" for wnid, word in words.items())


TINY_IMAGENET = TinyImageNet(remotes=(REMOTE,), folders=(FOLDER, "tinyimagenet"), counts=(100_000, 0, 10_000))

SOURCE = TINY_IMAGENET.source(
    class_sizes=(500,) * 200,
    within=SplitDefaults(tuple(range(100)), 100, unlabeled=40_000, ood_ratio=0.6, val_per_class=50),  # Table 3
)
