"""Exact and near duplicates are found, between labels and pile and within it, and counted once."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from helpers.small_backbone import small_backbone
from osp.data.folders import list_images
from osp.photos import duplicates
from osp.photos.duplicates import differences, find_duplicates
from osp.photos.features import compute, thumbnail


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))


def scene(seed: int) -> Image.Image:
    """A smooth picture with edges, as photographs are: random colours on a 5x5 grid, enlarged."""
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((160, 120), Image.Resampling.BICUBIC)


def save(image: Image.Image, path: Path, quality: int = 90) -> Path:
    path.parent.mkdir(exist_ok=True)
    image.save(path, quality=quality)
    return path


def test_copies_and_edited_versions_are_found_and_others_are_not(tmp_path: Path) -> None:
    labeled = [save(scene(seed), tmp_path / "sorted" / f"{seed}.jpg") for seed in range(5)]
    pile = [save(scene(seed), tmp_path / "pile" / f"{seed}.jpg") for seed in range(10, 30)]
    exact = tmp_path / "pile" / "exact.jpg"
    exact.write_bytes(labeled[0].read_bytes())
    small = save(scene(1).resize((80, 60)), tmp_path / "pile" / "small.png")
    rough = save(scene(10), tmp_path / "pile" / "rough.jpg", quality=30)
    bright = save(ImageEnhance.Brightness(scene(11)).enhance(1.15), tmp_path / "pile" / "bright.jpg")
    pile += [exact, small, rough, bright]
    backbone = small_backbone()
    found = find_duplicates(compute(labeled, backbone), compute(pile, backbone))
    groups = {(group.labeled, group.pile): group.exact for group in found.groups}
    assert groups == {((0,), (20,)): True, ((1,), (21,)): False, ((), (0, 22)): False, ((), (1, 23)): False}
    assert len(found.in_both) == 2
    np.testing.assert_array_equal(found.pile_once(24), np.arange(20))


def test_the_same_image_sorted_twice_is_one_group(tmp_path: Path) -> None:
    files = [save(scene(seed), tmp_path / f"{seed}.png") for seed in range(3)]
    files.append(save(scene(0).resize((90, 68)), tmp_path / "again.png"))
    backbone = small_backbone()
    found = find_duplicates(compute(files, backbone), compute([], backbone))
    assert [group.labeled for group in found.groups] == [(0, 3)]
    assert len(find_duplicates(compute([], backbone), compute([], backbone)).groups) == 0


def test_photos_of_a_fixed_camera_count_each_and_their_exact_copies_once(tmp_path: Path) -> None:
    """Each is alike the one before it, and the first is not alike the last."""
    one, other = (np.asarray(scene(seed), float) for seed in (0, 1))
    shots = [Image.fromarray((one + (other - one) * k / 12).astype(np.uint8)) for k in range(13)]
    files = [save(shot, tmp_path / f"{k:02}.png") for k, shot in enumerate(shots)]
    (tmp_path / "copy.png").write_bytes(files[5].read_bytes())
    files += [tmp_path / "copy.png", save(scene(9), tmp_path / "far.png"), save(scene(9), tmp_path / "far.jpg")]
    backbone = small_backbone()
    found = find_duplicates(compute(files[:5], backbone), compute(files[5:], backbone))
    assert {(group.labeled, group.pile): group.exact for group in found.groups} == {
        ((), (0, 8)): True,
        ((), (9, 10)): False,
    }
    assert found.scenes == (14,)
    few = find_duplicates(compute(files[:8], backbone), compute([], backbone))
    assert ([group.labeled for group in few.groups], few.scenes) == ([tuple(range(8))], ())


def test_groups_are_those_of_a_slow_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random pairs, and a chain of all images in a random order."""
    draws = np.random.default_rng(0)
    chain = draws.permutation(300)
    for pairs in (draws.integers(0, 300, (200, 2)), np.stack([chain[:-1], chain[1:]], axis=1), np.empty((0, 2), int)):
        pairs = np.sort(pairs, axis=1)
        groups = [{i} for i in range(300)]
        for one, other in pairs:
            if groups[one] is not groups[other]:
                groups[one] |= groups[other]
                for member in groups[other]:
                    groups[member] = groups[one]
        monkeypatch.setattr(duplicates, "_similar", lambda _, pairs=pairs: iter(np.array_split(pairs, 3)))
        found = duplicates._joined(np.empty((300, 17, 17), np.uint8))
        assert found.tolist() == [min(group) for group in groups]


def test_thousands_of_photos_of_one_scene_take_a_moment() -> None:
    """All pairs of 2,000 are two million: one by one in Python some 10 seconds of one core, here a quarter of one."""
    shot = np.random.default_rng(0).integers(0, 256, (17, 17), dtype=np.uint8)
    begun = time.process_time()
    assert not duplicates._joined(np.stack([shot] * 2000)).any()
    assert time.process_time() - begun < 4


def test_thumbnail_and_differences_are_those_of_a_slow_loop() -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 34, 51), dtype=np.uint8)
    grey = np.asarray(Image.fromarray(image.transpose(1, 2, 0)).convert("L"), float)
    blocks = np.array([[grey[2 * r : 2 * r + 2, 3 * c : 3 * c + 3].mean() for c in range(17)] for r in range(17)])
    small = thumbnail(image)
    np.testing.assert_allclose(small, blocks, atol=1)
    right = [float(small[r, c + 1]) - float(small[r, c]) for r in range(16) for c in range(16)]
    down = [float(small[r + 1, c]) - float(small[r, c]) for r in range(16) for c in range(16)]
    expected = np.array(right + down) / np.linalg.norm(right + down)
    np.testing.assert_allclose(differences(small[None])[0], expected, atol=1e-5)
    assert not differences(np.full((1, 17, 17), 7, np.uint8)).any()


def test_no_two_different_photographs_are_taken_for_one(
    real_data: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Seas under skies are alike; none of these 180 is there twice. Edited copies of them are found."""
    files = [file.path for file in list_images(real_data("photos") / "photos" / "sea")]
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    copies = []
    for number, file in enumerate(files[:10]):
        image = Image.open(file).convert("RGB")
        edited = (image.resize((75, 75)), ImageEnhance.Brightness(image).enhance(1.3), image)[number % 3]
        copies.append(save(edited, tmp_path / "copies" / f"{number}.jpg", quality=30))
    backbone = small_backbone()
    found = find_duplicates(compute(copies, backbone), compute(files, backbone))
    assert {(group.labeled, group.pile) for group in found.groups} == {((i,), (i,)) for i in range(10)}


def test_memory_grows_by_little_more_than_the_thumbnails(monkeypatch: pytest.MonkeyPatch) -> None:
    """289 bytes each; the differences, of which there are 512 numbers each, are never all there at once."""
    monkeypatch.setattr(duplicates, "_CHUNK", 64)
    thumbnails = np.random.default_rng(0).integers(0, 256, (2000, 17, 17), dtype=np.uint8)
    thumbnails[1999] = thumbnails[3]
    tracemalloc.start()
    try:
        assert np.concatenate(list(duplicates._similar(thumbnails))).tolist() == [[3, 1999]]
        assert tracemalloc.get_traced_memory()[1] < 2000 * 512
    finally:
        tracemalloc.stop()
