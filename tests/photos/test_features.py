"""Features are computed once for each content, survive kills and name the files that give no image."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.small_backbone import small_backbone, write_photo
from osp.data.decode import Unreadable, decode
from osp.data.views import Augmenter
from osp.nets.pretrained import Backbone
from osp.photos import features
from osp.photos.features import VIEWS, Features, Rows, compute, make_view
from osp.photos.instant import fit_instant


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))


class Counting:
    """How many images a backbone has seen."""

    def __init__(self, backbone: Backbone) -> None:
        self.images = 0
        backbone.network.register_forward_hook(self._count)

    def _count(self, module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        self.images += len(inputs[0])


def photos(folder: Path, count: int) -> list[Path]:
    return [write_photo(folder / f"{number:02}.png", number) for number in range(count)]


def expected(path: Path) -> np.ndarray:
    tiles = decode(str(path), 32).reshape(3, 4, 8, 4, 8).mean(axis=(2, 4)) / 255
    flat: np.ndarray = tiles.reshape(-1)
    return flat


def stored_rows(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "cache").glob("features-*/plain.rows")
    return found


def test_features_are_those_of_the_image_to_half_precision(tmp_path: Path) -> None:
    files = photos(tmp_path / "in", 5)
    found = compute(files, small_backbone())
    assert found.rows().dtype == np.float16
    np.testing.assert_allclose(found.rows(), np.stack([expected(file) for file in files]), atol=2e-3)
    np.testing.assert_array_equal(found.rows(np.array([3, 1])), found.rows()[[3, 1]])


def test_nothing_is_computed_twice_and_only_what_is_new_or_changed_later(tmp_path: Path) -> None:
    backbone = small_backbone()
    seen = Counting(backbone)
    files = photos(tmp_path / "in", 6)
    first = compute(files, backbone)
    assert seen.images == 6
    np.testing.assert_array_equal(compute(files, backbone).rows(), first.rows())
    assert seen.images == 6
    write_photo(files[2], 99)
    files.append(write_photo(tmp_path / "in" / "new.png", 50))
    changed = compute(files, backbone)
    assert seen.images == 8
    np.testing.assert_allclose(changed.rows()[2], expected(files[2]), atol=2e-3)
    np.testing.assert_allclose(changed.rows()[6], expected(files[6]), atol=2e-3)


def test_a_file_changed_without_a_new_size_or_time_of_writing_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.bmp"  # a BMP's size depends on its shape alone
    write_photo(file, 0)
    before = file.stat()
    compute([file], small_backbone())
    write_photo(file, 1)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    np.testing.assert_allclose(compute([file], small_backbone()).rows()[0], expected(file), atol=2e-3)


def test_a_photo_replaced_after_it_was_hashed_leaves_nothing_under_the_old_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, other = photos(tmp_path / "in", 2), write_photo(tmp_path / "other.png", 99)
    old = tmp_path / "old.png"
    old.write_bytes(files[0].read_bytes())

    real = features._keys

    def replaced(*given: Any) -> Any:
        found = real(*given)
        os.replace(other, files[0])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(features, "_keys", replaced)
        found = compute(files, small_backbone())
    assert [reason for _, reason in found.unreadable] == ["changed while it was being read; run again"]
    np.testing.assert_allclose(compute([old], small_backbone()).rows()[0], expected(old), atol=2e-3)


def test_a_book_of_files_that_is_damaged_is_passed_over(tmp_path: Path) -> None:
    files = photos(tmp_path / "in", 1)
    compute(files, small_backbone())
    (book,) = (tmp_path / "cache").glob("features-*/files.jsonl")
    book.write_text("[" * 100_000 + "\n")
    assert len(compute(files, small_backbone())) == 1


def test_copies_and_renamed_files_cost_nothing(tmp_path: Path) -> None:
    backbone = small_backbone()
    seen = Counting(backbone)
    file = write_photo(tmp_path / "a.png", 0)
    copy = tmp_path / "copy of a.png"
    copy.write_bytes(file.read_bytes())
    found = compute([file, copy], backbone)
    assert seen.images == 1
    assert found.keys[0] == found.keys[1]
    file.rename(tmp_path / "b.png")
    compute([tmp_path / "b.png"], backbone)
    assert seen.images == 1


def test_other_weights_have_a_store_of_their_own(tmp_path: Path) -> None:
    file = write_photo(tmp_path / "a.png", 0)
    compute([file], small_backbone())
    other = small_backbone("other")
    seen = Counting(other)
    compute([file], other)
    assert seen.images == 1


def test_unreadable_files_are_named_with_the_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    files = photos(tmp_path / "in", 3)
    empty, text, gone = tmp_path / "empty.jpg", tmp_path / "text.png", tmp_path / "gone.png"
    empty.touch()
    text.write_text("no image")
    found = compute([files[0], empty, files[1], text, gone, files[2]], small_backbone())
    assert found.files == tuple(str(file) for file in files)
    np.testing.assert_array_equal(found.kept, [0, 2, 5])
    assert [(Path(path).name, reason) for path, reason in found.unreadable] == [
        ("empty.jpg", "empty file (0 bytes)"),
        ("text.png", "not an image of a known format"),
        ("gone.png", "No such file or directory"),
    ]
    np.testing.assert_allclose(found.rows()[2], expected(files[2]), atol=2e-3)


def test_odd_names_are_read_and_remembered(tmp_path: Path) -> None:
    names = ["a b.png", "new\nline.png", "häß.png", "=1.png", os.fsdecode(b"\xff\xfe.png")]
    files = [write_photo(tmp_path / "in" / name, seed) for seed, name in enumerate(names)]
    backbone = small_backbone()
    seen = Counting(backbone)
    assert len(compute(files, backbone)) == 5
    assert len(compute(files, backbone)) == 5
    assert seen.images == 5


def test_progress_reaches_the_end_and_an_empty_list_is_no_mistake(tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    files = photos(tmp_path / "in", 40)
    compute(files, small_backbone(), progress=lambda *call: calls.append(call))
    assert calls[-1] == (40, 40, "Looking at photos")
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert compute([], small_backbone()).rows().shape == (0, 48)


@pytest.mark.parametrize("cut", [1, 50, 404, 406])
def test_a_record_cut_short_is_computed_anew_and_the_others_stay(tmp_path: Path, cut: int) -> None:
    """A record has 16 + 289 + 96 + 4 bytes: the cuts lie in the last record, at its start and in the one before."""
    files = photos(tmp_path / "in", 4)
    whole = compute(files, small_backbone()).rows()
    rows = stored_rows(tmp_path)
    os.truncate(rows, rows.stat().st_size - cut)
    backbone = small_backbone()
    seen = Counting(backbone)
    np.testing.assert_array_equal(compute(files, backbone).rows(), whole)
    assert seen.images == (2 if cut > 405 else 1)
    assert rows.stat().st_size == 4 * 405


def test_a_damaged_record_is_computed_anew(tmp_path: Path) -> None:
    files = photos(tmp_path / "in", 4)
    whole = compute(files, small_backbone()).rows()
    rows = stored_rows(tmp_path)
    content = bytearray(rows.read_bytes())
    content[405 + 350] ^= 8
    rows.write_bytes(content)
    np.testing.assert_array_equal(compute(files, small_backbone()).rows(), whole)


CHILD = """
import sys, time
from pathlib import Path
from osp.photos.features import compute
from helpers.small_backbone import small_backbone
backbone = small_backbone()
backbone.network.register_forward_hook(lambda *_: time.sleep(0.03))
compute(sorted(Path(sys.argv[1]).iterdir()), backbone)
"""


def test_a_killed_pass_goes_on_where_it_was(tmp_path: Path) -> None:
    files = photos(tmp_path / "in", 150)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "in")]
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
    child = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None:
        stores = list((tmp_path / "cache").glob("features-*/plain.rows"))
        if stores and stores[0].stat().st_size > 20 * 405:
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    done = stored_rows(tmp_path).stat().st_size // 405
    assert 0 < done < 150
    backbone = small_backbone()
    seen = Counting(backbone)
    found = compute(files, backbone)
    assert seen.images <= 150 - done
    np.testing.assert_allclose(found.rows(), np.stack([expected(file) for file in files]), atol=2e-3)


def test_views_are_stored_beside_plain_and_depend_on_content_alone(tmp_path: Path) -> None:
    files = photos(tmp_path / "in", 8)
    backbone = small_backbone()
    seen = Counting(backbone)
    compute(files, backbone)
    found = compute(files, backbone, VIEWS)
    assert seen.images == 8 * len(VIEWS)  # plain was there
    mirrored = found.rows(view="plain").reshape(8, 3, 4, 4)[..., ::-1].reshape(8, -1)
    np.testing.assert_allclose(found.rows(view="flip"), mirrored, atol=2e-3)
    views: dict[str, np.ndarray] = {view: found.rows(view=view) for view in VIEWS}
    os.environ["OSP_CACHE"] = str(tmp_path / "elsewhere")  # set by a fixture that puts it back
    again: Features = compute(files[::-1], small_backbone(), VIEWS)
    for view in VIEWS:
        np.testing.assert_allclose(again.rows(view=view)[::-1], views[view], atol=2e-3)


def test_two_draws_of_a_view_never_agree() -> None:
    augmenter = Augmenter((3, 8, 8), [0.0] * 3, [1.0] * 3)  # 3 x 3 x 2 = 18 weak views: 1 in 18 would agree by chance
    image = torch.arange(192, dtype=torch.uint8).view(1, 3, 8, 8)
    keys = [bytes([number]) * 16 for number in range(200)]
    images = image.expand(200, 3, 8, 8)
    first, second = (make_view(images, keys, view, augmenter) for view in ("weak", "weak2"))
    assert (first != second).flatten(1).any(dim=1).all()


def test_unknown_views_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'strong'"):
        compute([], small_backbone(), ["stron"])
    with pytest.raises(ValueError, match="was not computed"):
        compute([], small_backbone()).rows(view="weak")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_named_like_an_image_is_named_and_not_waited_for(tmp_path: Path) -> None:
    files = photos(tmp_path, 2)
    os.mkfifo(tmp_path / "pipe.jpg")
    found = compute([*files, tmp_path / "pipe.jpg"], small_backbone())
    assert len(found) == 2
    assert found.unreadable == ((str(tmp_path / "pipe.jpg"), "not a file that can be read as an image"),)
    with pytest.raises(Unreadable, match="empty file"):  # its size is 0, so it is not opened
        decode(str(tmp_path / "pipe.jpg"), 32)


def test_a_file_too_long_for_an_image_is_named_and_not_read(tmp_path: Path) -> None:
    write_photo(tmp_path / "a.png", 1)
    (tmp_path / "b.png").touch()
    os.truncate(tmp_path / "b.png", 1 << 40)  # zeros, which take no room on the disk
    found = compute([str(tmp_path / name) for name in ("a.png", "b.png")], small_backbone())
    assert found.kept.tolist() == [0]
    assert found.unreadable == ((str(tmp_path / "b.png"), "longer than 1,024 MB"),)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="tells mapped pages on Linux only")
def test_features_that_were_read_are_not_kept_in_memory(tmp_path: Path) -> None:
    """The pages of the store would count as this process's memory, and it may be larger than that."""
    found = compute([write_photo(tmp_path / f"{seed}.png", seed) for seed in range(200)], small_backbone())
    records, _ = found.stored["plain"]
    assert records.nbytes > 10 * 4096
    assert found.rows().shape == (200, 48)
    assert found.thumbnails().shape == (200, 17, 17)
    mapped = re.search(r"plain\.rows\nSize:.*?\nRss: +(\d+) kB", Path("/proc/self/smaps").read_text(), re.S)
    assert mapped is not None
    assert int(mapped[1]) == 0


def test_rows_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    found = compute([write_photo(tmp_path / f"{seed}.png", seed) for seed in range(6)], small_backbone())
    some = Rows(found, np.array([4, 2, 5]))
    assert some.shape == (len(some), 48) == (3, 48)
    np.testing.assert_array_equal(some[1:], found.rows()[[2, 5]])
    np.testing.assert_array_equal(some[np.array([2, 0])], found.rows()[[5, 4]])
    assert some[:0].shape == (0, 48)
    names, labels = ("a", "b"), np.arange(4) % 2
    one, other = (fit_instant(found.rows(slice(4)), labels, pile, names) for pile in (some, found.rows()[[4, 2, 5]]))
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.references, other.references)
