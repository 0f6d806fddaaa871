"""LSUN_resize: 10,000 scene photographs at 32x32 from the ODIN collection, a source of OOD images without classes."""

from __future__ import annotations

from pathlib import Path

from osp.data.decoded import decoded
from osp.data.imageset import ImageSet
from osp.data.listing import list_images
from osp.data.source import Description, Request, Source, SourceInfo
from osp.data.sources.base import check_root, variant_of
from osp.errors import UserError

COUNT, SIZE = 10_000, 32
FOLDERS = ("LSUN_resize/LSUN_resize", "LSUN_resize", "lsun")


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    """All images, as a pool: there is no test set."""
    name, folder = request.name, _found(request.root)
    files = list_images(folder)
    result = decoded(name, folder, [files], request.size or SIZE, request.progress)
    part = result.parts[0]
    if not len(part.images):
        raise UserError(f"None of the {len(files)} images in {folder} could be read. Unpack LSUN_resize.tar.gz again.")
    variant = _variant(folder, len(part.images))
    images = ImageSet(
        name,
        part.images,
        None,
        (),
        result.mean,
        result.std,
        variant,
        files=part.files,
        skipped=part.skipped,
        pixels=part.pixels,
    )
    return images, None


def _find(root: Path) -> Path | None:
    check_root(root)
    folders = (folder for folder in FOLDERS if (root / folder).is_dir() and list_images(root / folder))
    found = next(folders, None)
    if found:
        return root / found
    return root if root.name == "LSUN_resize" and list_images(root) else None


def _found(root: Path) -> Path:
    folder = _find(root)
    if folder is None:
        raise UserError(f"The data set 'lsun' is not in {root}: {_how(root)}.")
    return folder


def _variant(folder: Path, count: int) -> str | None:
    return variant_of(folder) or (f"{count:,} images instead of {COUNT:,}" if count != COUNT else None)


def _how(root: Path) -> str:
    return f"unpack LSUN_resize.tar.gz of the ODIN collection (github.com/facebookresearch/odin) into {root}"


def describe(request: Request) -> Description:
    """Count the files."""
    side = request.size or SIZE
    count = len(list_images(_found(request.root)))
    return Description(request.name, (), (), None, (3, side, side), train_unknown=count)


def look(request: Request) -> SourceInfo:
    """Count the files."""
    name, root = request.name, request.root
    folder = _find(root)
    if folder is None:
        return SourceInfo(name, False, str(root / "LSUN_resize"), how=_how(root))
    count = len(list_images(folder))
    return SourceInfo(name, True, str(folder), count, None, (3, SIZE, SIZE), _variant(folder, count))


SOURCE = Source(load=load, describe=describe, look=look)
