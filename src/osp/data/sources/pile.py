"""Every image below a folder, at any depth: unsorted, so nothing is known of any of them."""

from __future__ import annotations

from pathlib import Path

from osp.data.imageset import ImageSet
from osp.data.listing import kinds_in_words, walk
from osp.data.source import Description, Request, Source, SourceInfo
from osp.data.sources._photos import SIZE, Photos, describe_photos, load_photos
from osp.data.sources.base import check_root
from osp.errors import UserError


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    """Decode and resize once, to 32x32 if no size is given; all images are training images."""
    return load_photos(request, _list(request.root))


def describe(request: Request) -> Description:
    """Count the files."""
    return describe_photos(request, _list(request.root))


def look(request: Request) -> SourceInfo:
    """Any folder will do, so none is looked for."""
    how = "your own unsorted images, beside data 'folder': ood_data 'pile', ood_dir their folder"
    return SourceInfo(request.name, True, "any folder of images", None, None, (3, SIZE, SIZE), how=how)


def _list(root: Path) -> Photos:
    check_root(root, must_exist=True)
    photos = Photos(root, ())
    photos.add(walk(root), -1, test=False)
    if not photos.files:
        raise UserError(f"There is no image in {root} or below it ({kinds_in_words()}).")
    photos.leave_out_copies()
    return photos


SOURCE = Source(load=load, describe=describe, look=look, own_folder=True, unsorted=True)
