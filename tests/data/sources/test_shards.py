"""Tar shards read by row, against the very images that were packed; and shards that are damaged or meant ill."""

from __future__ import annotations

import io
import os
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from osp.data import load
from osp.data.images import ByRow, Images, match
from osp.errors import UserError

SIDE = 16


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)


def pack(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def packed(folder: Path, images: np.ndarray, per_shard: int) -> Path:
    """Shards as WebDataset has them: an image and its caption under one key."""
    folder.mkdir(exist_ok=True)
    for number, first in enumerate(range(0, len(images), per_shard)):
        files: dict[str, bytes] = {}
        for row in range(first, min(first + per_shard, len(images))):
            files |= {f"{row:06d}.png": png(images[row]), f"{row:06d}.txt": b"a caption"}
        pack(folder / f"pool-{number:04d}.tar", files)
    return folder


def images_in(folder: Path) -> ByRow:
    found: Any = load("shards", folder, size=SIDE)[0].images
    assert isinstance(found, ByRow)
    return found


def test_images_are_read_by_row_as_they_were_packed(tmp_path: Path) -> None:
    original = pixels(25).transpose(0, 3, 1, 2)
    found = images_in(packed(tmp_path / "shards", pixels(25), 10))
    assert found.shape == (25, 3, SIDE, SIDE)
    np.testing.assert_array_equal(found[:], original)
    np.testing.assert_array_equal(found[[24, 0, 11, 0]], original[[24, 0, 11, 0]])
    np.testing.assert_array_equal(found[-1], original[-1])
    assert found.starts.tolist() == [0, 10, 20]
    with pytest.raises(TypeError, match="not read into memory at once"):
        np.asarray(found)


def test_the_same_images_have_the_same_key_however_they_are_packed(tmp_path: Path) -> None:
    keys = [
        load("shards", packed(tmp_path / str(size), pixels(20), size), size=SIDE)[0].content_key for size in (5, 20)
    ]
    other = load("shards", packed(tmp_path / "other", pixels(20, seed=1), 5), size=SIDE)[0].content_key
    assert keys[0] == keys[1] != other


def test_the_index_is_written_once_and_again_when_a_shard_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = packed(tmp_path / "shards", pixels(12), 6)
    images_in(folder)
    with monkeypatch.context() as patch:
        patch.setattr("osp.data.sources.shards.decode_all", lambda *_: pytest.fail("indexed again"))
        assert len(images_in(folder)) == 12
    packed(folder, pixels(13), 6)
    assert len(images_in(folder)) == 13


def test_what_is_no_image_is_left_out_and_named(tmp_path: Path) -> None:
    good = png(pixels(1)[0])
    pack(tmp_path / "a.tar", {"1.png": good, "2.png": b"no image", "3.png": good[:40], "4.png": b"", "5.png": good})
    with pytest.warns(UserWarning, match=r"3 images .* left out \(a\.tar/2\.png: not an image"):
        train, _ = load("shards", tmp_path, size=SIDE)
    assert len(train) == 2
    assert [name for name, _ in train.skipped] == ["a.tar/2.png", "a.tar/3.png", "a.tar/4.png"]
    np.testing.assert_array_equal(train.images[1], pixels(1)[0].transpose(2, 0, 1))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "secret.png").write_bytes(png(pixels(1)[0]))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("image.png")
        info.type, info.linkname = kind, str(tmp_path / "secret.png")
        tar.addfile(info)
    with pytest.raises(UserError, match=r"a\.tar holds 'image\.png', a link, device or sparse file"):
        load("shards", tmp_path)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_name_of_gigabytes_is_not_read(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("long")
    info.type, info.size = kind, 3 << 30
    with open(tmp_path / "a.tar", "wb") as file:
        file.write(info.tobuf())
        file.truncate((3 << 30) + 10240)
    with pytest.raises(UserError, match="a header of more than 1 MB"):
        load("shards", tmp_path)


def test_odd_notes_of_a_file_are_a_sentence(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("image.png")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        content = png(pixels(1)[0])
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    with pytest.raises(UserError, match=r"damaged or no tar file|sparse"):
        load("shards", tmp_path)


def test_names_that_lead_out_of_the_folder_write_nothing(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    pack(tmp_path / "shards" / "a.tar", {"../../evil.png": png(pixels(1)[0]), "/evil.png": png(pixels(1)[0])})
    before = sorted(tmp_path.rglob("*"))
    assert len(images_in(tmp_path / "shards")) == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_a_bomb_is_not_decoded(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("1", (14_000, 14_000)).save(file, "PNG")
    pack(tmp_path / "a.tar", {"bomb.png": file.getvalue(), "ok.png": png(pixels(1)[0])})
    with pytest.warns(UserWarning, match="absurdly large"):
        assert len(load("shards", tmp_path, size=SIDE)[0]) == 1


def test_shards_that_are_damaged_compressed_or_missing_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no shard in"):
        load("shards", tmp_path)
    packed(tmp_path, pixels(4), 4)
    whole = (tmp_path / "pool-0000.tar").read_bytes()
    (tmp_path / "pool-0000.tar").write_bytes(whole[:1500])
    with pytest.raises(UserError, match=r"cut short|damaged"):
        load("shards", tmp_path)
    (tmp_path / "pool-0000.tar").write_bytes(b"no tar file" * 100)
    with pytest.raises(UserError, match="damaged or no tar file"):
        load("shards", tmp_path)
    (tmp_path / "pool-0001.tar.gz").write_bytes(b"")
    with pytest.raises(UserError, match="is compressed"):
        load("shards", tmp_path)


def test_a_shard_that_changes_under_a_run_is_a_sentence(tmp_path: Path) -> None:
    found = images_in(packed(tmp_path / "shards", pixels(4), 4))
    path = tmp_path / "shards" / "pool-0000.tar"
    os.utime(path, (1, 1))
    with pytest.raises(UserError, match="has changed since it was opened"):
        found.take(np.array([0]))
    again = images_in(tmp_path / "shards")
    again.take(np.array([0]))
    unopened = images_in(tmp_path / "shards")
    path.write_bytes(bytes(path.stat().st_size))  # the same file, with nothing in it
    with pytest.raises(UserError, match="can no longer be read"):
        again.take(np.array([1]))
    os.utime(path, (1, 1))  # of its size and time: only the time of the change itself tells
    with pytest.raises(UserError, match="has changed since it was opened"):
        unopened.take(np.array([0]))
    with pytest.raises(UserError, match=r"no readable image|damaged"):
        images_in(tmp_path / "shards")


def test_a_shard_that_may_not_be_read_is_named_and_not_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(tmp_path, pixels(3), 3)

    def refused(path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("osp.data.sources.shards.io.FileIO", refused)  # the tests may run as root, who may read all
    with pytest.raises(UserError, match=r"pool-0000\.tar cannot be read: Permission denied\.$"):
        load("shards", tmp_path, size=SIDE)


def test_as_part_of_all_images_and_in_grey(tmp_path: Path) -> None:
    rgb = pixels(6).transpose(0, 3, 1, 2)
    found = images_in(packed(tmp_path / "shards", pixels(6), 3))
    known = np.zeros((4, 1, SIDE, SIDE), np.uint8)
    both = Images([known, match(found, (1, SIDE, SIDE))])
    assert len(both) == 10
    assert both.shards is not None
    assert both.shards.tolist() == [0, 4, 7]
    np.testing.assert_array_equal(both.take([9, 0, 4]).numpy()[[0, 2]], match(rgb, (1, SIDE, SIDE))[[5, 0]])
    assert Images(known).shards is None


def test_more_shards_than_files_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osp.data.sources.shards.OPEN_FILES", 2)
    found = images_in(packed(tmp_path / "shards", pixels(12), 2))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        np.testing.assert_array_equal(found[::-1], pixels(12)[::-1].transpose(0, 3, 1, 2))
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_readable_shards_give_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("shards", packed(tmp_path / "shards", pixels(3), 3), size=SIDE)
