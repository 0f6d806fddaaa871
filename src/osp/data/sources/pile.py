"""Every image below a folder, at any depth: unsorted, so nothing is known of any of them."""

from __future__ import annotations

from pathlib import Path

from osp.data.folders import LabeledFiles, check_root, kinds_in_words, walk
from osp.data.from_files import own_images
from osp.errors import UserError


def list_files(root: Path) -> LabeledFiles:
    """The files, copies left out; all of them are training images."""
    check_root(root, must_exist=True)
    listed = LabeledFiles(root, ())
    listed.add(walk(root))
    if not listed.files:
        raise UserError(f"There is no image in {root} or below it ({kinds_in_words()}).")
    listed.leave_out_copies()
    return listed


SOURCE = own_images(
    list_files,
    "your own unsorted images, beside data 'folder': ood_data 'pile', ood_dir their folder",
    unsorted=True,
)
