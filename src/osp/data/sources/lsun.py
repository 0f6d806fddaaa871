"""LSUN_resize: 10,000 scene photographs at 32x32 from the ODIN collection, a source of OOD images without classes."""

from __future__ import annotations

from pathlib import Path

from osp.data.imageset import ImageSet
from osp.data.sources.base import Request, SourceInfo, check_root, variant_of
from osp.data.sources.files import decoded, list_images
from osp.errors import UserError

COUNT, SIZE = 10_000, 32
FOLDERS = ("LSUN_resize/LSUN_resize", "LSUN_resize", "lsun")


def load(name: str, request: Request) -> tuple[ImageSet, ImageSet | None]:
    """All images, as a pool: there is no test set."""
    folder = _find(request.root)
    if folder is None:
        raise UserError(f"The data set 'lsun' is not in {request.root}: {_how(request.root)}.")
    files = list_images(folder)
    result = decoded(name, folder, [files], request.size or SIZE, request.progress)
    part = result.parts[0]
    if not len(part.images):
        raise UserError(f"None of the {len(files)} images in {folder} could be read. Unpack LSUN_resize.tar.gz again.")
    variant = _variant(folder, len(part.images))
    images = ImageSet(
        name, part.images, None, (), result.mean, result.std, variant, files=part.files, skipped=part.skipped
    )
    return images, None


def _find(root: Path) -> Path | None:
    check_root(root)
    folders = (folder for folder in FOLDERS if (root / folder).is_dir() and list_images(root / folder))
    found = next(folders, None)
    if found:
        return root / found
    return root if root.name == "LSUN_resize" and list_images(root) else None


def _variant(folder: Path, count: int) -> str | None:
    return variant_of(folder) or (f"{count:,} images instead of {COUNT:,}" if count != COUNT else None)


def _how(root: Path) -> str:
    return f"unpack LSUN_resize.tar.gz of the ODIN collection (github.com/facebookresearch/odin) into {root}"


def look(name: str, root: Path) -> SourceInfo:
    """Count the files."""
    folder = _find(root)
    if folder is None:
        return SourceInfo(name, False, str(root / "LSUN_resize"), how=_how(root))
    count = len(list_images(folder))
    return SourceInfo(name, True, str(folder), count, None, (3, SIZE, SIZE), _variant(folder, count))
