"""Tiny ImageNet: 200 classes of ImageNet, 500 training and 50 validation images each; validation serves as test.

The class numbers follow wnids.txt, of which the paper takes the first hundred as ID. Images of any size are resized
(the paper: 32x32).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from osp.data.decoded import check_classes, decoded
from osp.data.imageset import ImageSet
from osp.data.listing import File, list_images, subfolders
from osp.data.packed import unpack_or_fetch
from osp.data.source import Description, Remote, Request, Source, SourceInfo, SplitDefaults, per_class
from osp.data.sources.base import find_folder, variant_of
from osp.errors import UserError

FOLDER = "tiny-imagenet-200"
REMOTE = Remote("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")
ARCHIVE = REMOTE.file
SIZE = 32
MEAN, STD = (0.480245, 0.44807, 0.397548), (0.27172, 0.265269, 0.27397)
COUNTS = (100_000, 10_000)


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    """Decode and resize once; map the pixels after that."""
    name = request.name
    folder, wnids, listed = _listed(request)
    result = decoded(name, folder, [files for files, _ in listed], request.size or SIZE, request.progress)
    names = _class_names(folder, wnids)
    variant = _variant(folder, [len(part.images) for part in result.parts])
    sets: list[ImageSet] = []
    for part, (_, numbers) in zip(result.parts, listed, strict=True):
        labels = numbers[part.kept]
        if not sets:
            check_classes(labels, wnids, folder / "train", part.skipped)
        sets.append(
            ImageSet(
                name,
                part.images,
                labels,
                names,
                MEAN,
                STD,
                variant,
                files=part.files,
                skipped=part.skipped,
                pixels=part.pixels,
            )
        )
    if not len(sets[1]):
        raise UserError(f"{folder / 'val'} holds no image that can be read. Fetch {ARCHIVE} again.")
    return sets[0], sets[1]


def _listed(request: Request) -> tuple[Path, list[str], list[tuple[list[File], np.ndarray]]]:
    """The folder, its classes, and the files of training and validation with their class numbers."""
    folder = _find(request.root) or unpack_or_fetch(request, REMOTE, FOLDER)
    wnids = _wnids(folder)
    return folder, wnids, [_train(folder, wnids), _validation(folder, wnids)]


def _find(root: Path) -> Path | None:
    return find_folder(root, (FOLDER, "tinyimagenet"), lambda f: (f / "wnids.txt").is_file() and (f / "train").is_dir())


def _wnids(folder: Path) -> list[str]:
    path = folder / "wnids.txt"
    wnids = path.read_text("utf-8", errors="replace").split()
    if not wnids:
        raise UserError(f"{path} is empty. Fetch {ARCHIVE} again.")
    doubled = [wnid for wnid, count in Counter(wnids).items() if count > 1]
    if doubled:
        raise UserError(f"{path} names the class {doubled[0]} twice. Fetch {ARCHIVE} again.")
    return wnids


def _train(folder: Path, wnids: list[str]) -> tuple[list[File], np.ndarray]:
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


def _validation(folder: Path, wnids: list[str]) -> tuple[list[File], np.ndarray]:
    """As published, with val_annotations.txt, or sorted into folders by class as many people keep it."""
    number = {wnid: index for index, wnid in enumerate(wnids)}
    where, notes = folder / "val", folder / "val" / "val_annotations.txt"
    if not where.is_dir():
        raise UserError(f"{where} is missing. Fetch {ARCHIVE} again.")
    if not notes.is_file() or not (where / "images").is_dir():
        listed = [(file, number[wnid]) for wnid in subfolders(where)[0] if wnid in number
                  for file in list_images(where / wnid, deep=True)]  # fmt: skip
        if not listed:
            raise UserError(f"{notes} or {where / 'images'} is missing. Fetch {ARCHIVE} again.")
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
            raise UserError(f"{file.path} {said} in {notes}. Fetch {ARCHIVE} again.")
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


def _variant(folder: Path, counts: list[int]) -> str | None:
    stated = variant_of(folder)
    if stated or tuple(counts) == COUNTS:
        return stated
    return f"{counts[0]:,} training and {counts[1]:,} validation images instead of {COUNTS[0]:,} and {COUNTS[1]:,}"


def describe(request: Request) -> Description:
    """Count the files."""
    folder, wnids, listed = _listed(request)
    train, test = (per_class(numbers, len(wnids)) for _, numbers in listed)
    side = request.size or SIZE
    return Description(request.name, _class_names(folder, wnids), train, test, (3, side, side))


def look(request: Request) -> SourceInfo:
    """Count the files."""
    from osp.data.download import how_to_get

    name, root = request.name, request.root
    folder = _find(root)
    if folder is None:
        if (root / ARCHIVE).is_file():
            archive = str(root / ARCHIVE)
            return SourceInfo(name, True, archive, *COUNTS, (3, SIZE, SIZE), how="unpacked at the first use")
        return SourceInfo(name, False, str(root / FOLDER), how=how_to_get([REMOTE], root))
    wnids = _wnids(folder)
    counts = [len(_train(folder, wnids)[0]), len(_validation(folder, wnids)[0])]
    return SourceInfo(name, True, str(folder), counts[0], counts[1], (3, SIZE, SIZE), _variant(folder, counts))


SOURCE = Source(
    load=load,
    describe=describe,
    look=look,
    remotes=(REMOTE,),
    class_sizes=(500,) * 200,
    within=SplitDefaults(tuple(range(100)), 100, unlabeled=40_000, ood_ratio=0.6, val_per_class=50),  # Table 3
)
