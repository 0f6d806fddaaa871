"""Unsorted images in tar shards, as WebDataset has them: for a pool that is larger than memory.

The images stay where they are and are read by row (`osp.data.shards`); a shard may hold other files beside them, such
as captions, which are passed over. Copies are not looked for.
"""

from __future__ import annotations

from osp.data.folders import check_root
from osp.data.from_files import SIZE
from osp.data.images import ImageSet
from osp.data.shards import find_shards, index_shards
from osp.data.source import Request, Source, SourceInfo
from osp.errors import UserError


def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
    """Find where each image lies, at the first call; all images are training images, 32x32 if no size is given."""
    check_root(request.root, must_exist=True)
    shards = find_shards(request.root)
    found = index_shards(request.root, shards, request.size or SIZE, request.progress)
    if not len(found.images):
        why = "".join(f" ({name}: {reason})" for name, reason in found.skipped[:1])
        raise UserError(f"There is no readable image in the shards of {request.root}{why}.")
    images = found.images.as_array()
    named = ImageSet(request.name, images, None, (), found.mean, found.std, skipped=found.skipped, pixels=found.pixels)
    return named, None


def look(request: Request) -> SourceInfo:
    """Any folder will do, so none is looked for."""
    how = "your own unsorted images in tar shards, beside another set: ood_data 'shards', ood_dir their folder"
    return SourceInfo(request.name, True, "any folder of tar files", None, None, (3, SIZE, SIZE), how=how)


SOURCE = Source(load=load, look=look, own_folder=True, unsorted=True)
