"""LSUN_resize: 10,000 scene photographs at 32x32 from the ODIN collection, a source of OOD images without classes."""

from __future__ import annotations

from pathlib import Path

from osp.data.folders import list_images
from osp.data.from_files import decoded
from osp.data.images import ImageSet
from osp.data.published import Published
from osp.data.source import Description, Request
from osp.errors import UserError

FOLDERS = ("LSUN_resize/LSUN_resize", "LSUN_resize", "lsun")


class Lsun(Published):
    """Image files in one folder, as a pool: there is no test set."""

    def has(self, folder: Path) -> bool:
        """The data folder itself only where it has such a name: any folder may hold images."""
        return folder.name in FOLDERS and folder.is_dir() and bool(list_images(folder))

    def how(self, root: Path) -> str:
        return f"unpack LSUN_resize.tar.gz of the ODIN collection (github.com/facebookresearch/odin) into {root}"

    def open(self, request: Request) -> Path:
        folder = self.find(request.root)
        if folder is None:
            raise UserError(f"The data set 'lsun' is not in {request.root}: {self.how(request.root)}.")
        return folder

    def description(self, folder: Path, request: Request) -> Description:
        return Description(request.name, (), (), None, self.sized(request), train_unknown=len(list_images(folder)))

    def read(self, folder: Path, request: Request) -> tuple[ImageSet, ImageSet | None]:
        files = list_images(folder)
        (pool,) = decoded(request, folder, [(files, None)])
        if not len(pool):
            raise UserError(
                f"None of the {len(files)} images in {folder} could be read. Unpack LSUN_resize.tar.gz again."
            )
        return pool, None


SOURCE = Lsun(folders=FOLDERS, counts=(0, 10_000, 0)).source()
