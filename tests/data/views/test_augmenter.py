"""The views, against a slow loop that does to one image at a time what the plan says, with Pillow and NumPy."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor

from osp import UserError
from osp.data.views import Augmenter, Draws, Plan, View, available
from osp.data.views.strong import OPERATIONS
from osp.data.views.weak import Weak
from osp.randomness import generator

VIEWS = available()
SHAPES = [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 40, 24)]


def photographs(shape: tuple[int, int, int], n: int) -> Tensor:
    """Tiles cut from scikit-learn's two photographs, shrunk threefold; digits where the shape is theirs."""
    channels, height, width = shape
    if shape == (1, 8, 8):
        digits = np.resize(load_digits().images, (n, 1, 8, 8))
        return torch.from_numpy(np.round(digits * (255 / 16)).astype(np.uint8))
    tiles = []
    for i in range(n):
        photo = Image.fromarray(load_photos()[i % 2])
        x, y = 37 * i % (photo.width - 3 * width), 53 * i % (photo.height - 3 * height)
        tile = photo.crop((x, y, x + 3 * width, y + 3 * height)).resize((width, height))
        tiles.append(np.asarray(tile.convert("L" if channels == 1 else "RGB")).reshape(height, width, channels))
    return torch.from_numpy(np.stack(tiles)).permute(0, 3, 1, 2).contiguous()


_photos: list[np.ndarray] = []


def load_photos() -> list[np.ndarray]:
    if not _photos:
        _photos.extend(load_sample_images().images)
    return _photos


def augmenter_for(shape: tuple[int, int, int], mirror: bool = True, cutout: bool = True) -> Augmenter:
    return Augmenter(shape, [0.4, 0.5, 0.6][: shape[0]], [0.2, 0.3, 0.25][: shape[0]], mirror=mirror, cutout=cutout)


def pad_of(augmenter: Augmenter) -> tuple[int, int]:
    weak = augmenter.view("weak")
    assert isinstance(weak, Weak)
    return weak.pad


def view_of(augmenter: Augmenter, images: Tensor, view: str, draws: torch.Generator) -> Tensor:
    return augmenter.apply(images, augmenter.plan(view, len(images), draws))


def slow_crop(image: np.ndarray, draws: Draws, i: int, pad: tuple[int, int]) -> np.ndarray:
    """Height × width × channels: mirrored, then cropped from the reflect-padded image."""
    height, width, _ = image.shape
    if "flip" in draws and draws["flip"][i]:
        image = image[:, ::-1]
    top, left = pad[0] + int(draws["shift"][i, 0]), pad[1] + int(draws["shift"][i, 1])
    padded = np.pad(image, ((pad[0], pad[0]), (pad[1], pad[1]), (0, 0)), mode="reflect")
    return np.ascontiguousarray(padded[top : top + height, left : left + width])


def slow_operation(image: Image.Image, name: str, v: int, sign: int) -> Image.Image:
    """FixMatch's operations as released (`randaugment.py`), with the sign given instead of drawn."""
    if name == "AutoContrast":
        return ImageOps.autocontrast(image)
    if name == "Equalize":
        return ImageOps.equalize(image)
    if name == "Identity":
        return image
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        enhancer = getattr(ImageEnhance, name)(image)
        result = enhancer.enhance(float(v) * 0.9 / 10 + 0.05)
        assert isinstance(result, Image.Image)
        return result
    if name == "Posterize":
        return ImageOps.posterize(image, int(v * 4 / 10) + 4)
    if name == "Solarize":
        return ImageOps.solarize(image, 256 - int(v * 256 / 10))
    if name == "Rotate":
        return image.rotate(sign * int(v * 30 / 10))
    share = sign * (float(v) * 0.3 / 10)
    matrix = {
        "ShearX": (1, share, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, share, 1, 0),
        "TranslateX": (1, 0, int(share * image.size[0]), 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, int(share * image.size[1])),
    }[name]
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def slow_strong(images: Tensor, draws: Draws, pad: tuple[int, int]) -> Tensor:
    results = []
    for i, tensor in enumerate(images):
        array = slow_crop(tensor.permute(1, 2, 0).numpy(), draws, i, pad)
        height, width, channels = array.shape
        image = Image.fromarray(array[..., 0] if channels == 1 else array)
        for j in range(draws["op"].shape[1]):
            if draws["active"][i, j]:
                sign = -1 if draws["negative"][i, j] else 1
                image = slow_operation(image, OPERATIONS[draws["op"][i, j]], int(draws["level"][i, j]), sign)
        array = np.array(image).reshape(height, width, channels)
        if "center" in draws:
            side = min(height, width) // 2
            top, left = (int(middle) - side // 2 for middle in draws["center"][i])
            array[max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 127
        results.append(torch.from_numpy(array).permute(2, 0, 1))
    return torch.stack(results)


@pytest.mark.parametrize("cutout", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_strong_view_equals_pillow_image_by_image(shape: tuple[int, int, int], cutout: bool) -> None:
    augmenter = augmenter_for(shape, cutout=cutout)
    images = photographs(shape, 200)
    plan = augmenter.plan("strong", 200, generator("strong", str(shape)))
    ours = augmenter.transform(images, plan)
    assert torch.equal(ours, slow_strong(images, plan.draws, pad_of(augmenter)))
    assert (ours.flatten(1) != images.flatten(1)).any(1).float().mean() > 0.95


def test_every_operation_at_every_level_and_sign_equals_pillow() -> None:
    for shape in SHAPES:
        augmenter = augmenter_for(shape, cutout=False)
        op, level, sign = torch.cartesian_prod(torch.arange(14), torch.arange(1, 10), torch.arange(2))[
            :, :, None
        ].unbind(1)
        n = len(op)
        shift, active = torch.zeros(n, 2, dtype=torch.int64), torch.ones(n, 1).bool()
        draws = {"shift": shift, "op": op, "level": level, "negative": sign.bool(), "active": active}
        plan = Plan(augmenter.view("strong"), n, draws)
        images = photographs(shape, n)
        assert torch.equal(augmenter.transform(images, plan), slow_strong(images, plan.draws, pad_of(augmenter)))


@pytest.mark.parametrize(("shape", "pad"), [((3, 32, 32), (4, 4)), ((1, 28, 28), (3, 3)), ((3, 40, 24), (5, 3))])
def test_weak_view_is_a_reflect_padded_crop(shape: tuple[int, int, int], pad: tuple[int, int]) -> None:
    augmenter = augmenter_for(shape)
    images = photographs(shape, 128)
    plan = augmenter.plan("weak", 128, generator("weak"))
    expected = [slow_crop(image.permute(1, 2, 0).numpy(), plan.draws, i, pad) for i, image in enumerate(images)]
    assert torch.equal(augmenter.transform(images, plan), torch.from_numpy(np.stack(expected)).permute(0, 3, 1, 2))


def test_crop_offsets_are_uniform_over_twice_the_padding() -> None:
    plan = augmenter_for((3, 32, 32)).plan("weak", 9000, generator("offsets"))
    for direction in plan.draws["shift"].T:
        values, counts = torch.unique(direction, return_counts=True)
        assert values.tolist() == list(range(-4, 5))
        assert (counts - 1000).abs().max() < 5 * (1000 * 8 / 9) ** 0.5


def test_eight_pixel_images_move_by_one_pixel() -> None:
    plan = augmenter_for((1, 8, 8)).plan("weak", 300, generator("eight"))
    assert torch.unique(plan.draws["shift"]).tolist() == [-1, 0, 1]


def test_flip_view_mirrors_about_half_of_the_images_and_nothing_else() -> None:
    augmenter = augmenter_for((3, 32, 32))
    images = photographs((3, 32, 32), 400)
    plan = augmenter.plan("flip", 400, generator("flip"))
    ours = augmenter.transform(images, plan)
    assert torch.equal(ours[plan.draws["flip"]], images[plan.draws["flip"]].flip(3))
    assert torch.equal(ours[~plan.draws["flip"]], images[~plan.draws["flip"]])
    assert 150 < plan.draws["flip"].sum() < 250


def test_no_view_of_digits_is_mirrored() -> None:
    augmenter = augmenter_for((1, 8, 8), mirror=False, cutout=False)
    images = photographs((1, 8, 8), 300)
    assert all("flip" not in augmenter.plan(view, 300, generator(view)).draws for view in VIEWS)
    assert torch.equal(augmenter.transform(images, augmenter.plan("flip", 300, generator(0))), images)
    weak = augmenter.transform(images, augmenter.plan("weak", 300, generator(1))).numpy()
    for image, result in zip(images[:, 0].numpy(), weak[:, 0], strict=True):
        padded = np.pad(image, 1, mode="reflect")
        assert any(np.array_equal(result, padded[r : r + 8, c : c + 8]) for r in range(3) for c in range(3))


def test_strong_view_greys_a_square_unless_told_not_to() -> None:
    images = torch.full((200, 3, 32, 32), 64, dtype=torch.uint8)
    for cutout in (True, False):
        augmenter = augmenter_for((3, 32, 32), cutout=cutout)
        plan = augmenter.plan("strong", 200, generator("square"))
        still = {**plan.draws, "active": torch.zeros(200, 2).bool()}
        ours = augmenter.transform(images, Plan(plan.view, 200, still))
        assert set(torch.unique(ours).tolist()) == ({64, 127} if cutout else {64})
        grey = (ours == 127).all(1)
        if cutout:
            assert grey.flatten(1).sum(1).max() == 16 * 16
            assert grey.flatten(1).sum(1).min() >= 8 * 8
            rows, columns = grey.any(2).sum(1), grey.any(1).sum(1)
            assert torch.equal(rows * columns, grey.flatten(1).sum(1))


def test_draws_of_the_strong_view_have_the_stated_distribution() -> None:
    n = 14_000
    plan = augmenter_for((3, 32, 32)).plan("strong", n, generator("distribution"))

    def deviation(draws: Tensor, values: range) -> float:
        """The largest distance of a count from its mean, in standard deviations."""
        share = 1 / len(values)
        assert draws.min() >= values.start
        assert draws.max() < values.stop
        counts = torch.stack([(draws == value).sum() for value in values])
        return float((counts - draws.numel() * share).abs().max() / (draws.numel() * share * (1 - share)) ** 0.5)

    for j in range(2):
        assert deviation(plan.draws["op"][:, j], range(14)) < 4.5
        assert deviation(plan.draws["level"][:, j], range(1, 10)) < 4.5
        assert deviation(plan.draws["active"][:, j].long(), range(2)) < 4.5
        assert deviation(plan.draws["negative"][:, j].long(), range(2)) < 4.5
        assert deviation(plan.draws["center"][:, j], range(32)) < 4.5
    # with replacement, and each draw on its own
    assert deviation(plan.draws["op"][:, 0] * 14 + plan.draws["op"][:, 1], range(196)) < 5
    assert deviation(plan.draws["active"][:, 0] * 2 + plan.draws["active"][:, 1].long(), range(4)) < 4.5


def test_each_image_of_a_batch_gets_its_own_operations() -> None:
    images = photographs((3, 32, 32), 1).expand(64, -1, -1, -1)
    strong = view_of(augmenter_for((3, 32, 32), mirror=False, cutout=False), images, "strong", generator("own"))
    assert len(torch.unique(strong.flatten(1), dim=0)) > 55


@pytest.mark.parametrize("view", VIEWS)
def test_plan_depends_on_the_generator_alone(view: str) -> None:
    augmenter = augmenter_for((3, 32, 32))
    images = photographs((3, 32, 32), 32)
    first = view_of(augmenter, images, view, generator(3, "views"))
    torch.manual_seed(99)
    assert torch.equal(first, view_of(augmenter, images, view, generator(3, "views")))
    if view != "plain":
        assert not torch.equal(first, view_of(augmenter, images, view, generator(4, "views")))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("world", [2, 3])
def test_slices_of_a_plan_give_the_images_of_the_global_batch(view: str, world: int) -> None:
    augmenter = augmenter_for((3, 32, 32))
    images = photographs((3, 32, 32), 50)
    plan = augmenter.plan(view, 50, generator("global"))
    everything = augmenter.apply(images, plan)
    for rank in range(world):
        part = plan[rank::world]
        assert len(part) == len(images[rank::world])
        assert torch.equal(augmenter.apply(images[rank::world], part), everything[rank::world])


def test_an_empty_slice_gives_no_images() -> None:
    augmenter = augmenter_for((3, 32, 32))
    plan = augmenter.plan("strong", 1, generator(0))[1::2]
    assert augmenter.apply(torch.zeros(0, 3, 32, 32, dtype=torch.uint8), plan).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_views_are_normalized_floats_and_leave_the_images_alone(shape: tuple[int, int, int], view: str) -> None:
    augmenter = augmenter_for(shape)
    images = photographs(shape, 40)
    before = images.clone()
    plan = augmenter.plan(view, 40, generator("normal"))
    result = augmenter.apply(images, plan)
    assert torch.equal(images, before)
    assert result.dtype == torch.float32
    assert result.shape == images.shape
    assert result.is_contiguous()
    mean = torch.tensor([0.4, 0.5, 0.6])[: shape[0], None, None]
    std = torch.tensor([0.2, 0.3, 0.25])[: shape[0], None, None]
    expected = (augmenter.transform(images, plan) / 255 - mean) / std
    torch.testing.assert_close(result, expected, atol=2e-6, rtol=0)


def test_images_need_not_be_contiguous() -> None:
    augmenter = augmenter_for((3, 32, 32))
    images = photographs((3, 32, 32), 64)
    plan = augmenter.plan("strong", 32, generator("stride"))
    assert torch.equal(augmenter.apply(images[::2], plan), augmenter.apply(images[::2].clone(), plan))
    last = images[::2].to(memory_format=torch.channels_last)
    assert torch.equal(augmenter.apply(last, plan), augmenter.apply(images[::2].clone(), plan))


def test_wrong_use_is_refused_with_the_values() -> None:
    augmenter = augmenter_for((3, 32, 32))
    plan = augmenter.plan("weak", 4, generator(0))
    with pytest.raises(UserError, match=r"Unknown view 'wek2'\. Did you mean 'weak'"):
        augmenter.plan("wek2", 4, generator(0))
    with pytest.raises(ValueError, match="float32 4x3x32x32"):
        augmenter.apply(torch.zeros(4, 3, 32, 32), plan)
    with pytest.raises(ValueError, match=r"uint8 5x3x32x32; the plan is for torch\.uint8 4x3x32x32"):
        augmenter.apply(torch.zeros(5, 3, 32, 32, dtype=torch.uint8), plan)
    with pytest.raises(ValueError, match="1 or 3 channels"):
        Augmenter((4, 8, 8), [0.5] * 4, [0.5] * 4)
    with pytest.raises(ValueError, match="one value per channel"):
        Augmenter((3, 8, 8), [0.5], [0.5])


def test_a_view_that_gives_something_else_than_it_was_given_is_named() -> None:
    class Cropped(View):
        def apply(self, images: Tensor, draws: Draws) -> Tensor:
            return images[..., 1:]

    augmenter = augmenter_for((1, 8, 8))
    plan = Plan(Cropped(augmenter.kind), 2, {})
    with pytest.raises(UserError, match=r"The view Cropped must give torch.uint8 \(2, 1, 8, 8\)"):
        augmenter.apply(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), plan)


PINNED = {
    (3, 32, 32): ("14b763c12e9e05bd", "65318c23f457204a", "b7df0320a694ddca", "fe5d6d301aec6309"),
    (1, 8, 8): ("de92bec36f5cca88", "de92bec36f5cca88", "09145124f7c16089", "c277473e02ac51b3"),
    (1, 28, 28): ("760130d1b9586ed1", "760130d1b9586ed1", "21e373ccd2646773", "34d1d3eb68e9a6a4"),
}


@pytest.mark.parametrize("shape", list(PINNED))
def test_a_seed_means_the_same_views_in_every_version(shape: tuple[int, int, int]) -> None:
    """Digests of 8-bit images, made with version 0.1: whole numbers, so the same on every processor."""
    images = torch.randint(0, 256, (64, *shape), dtype=torch.uint8, generator=generator("pins", str(shape)))
    colored = shape[0] == 3
    augmenter = augmenter_for(shape, mirror=colored, cutout=colored)
    for view, pinned in zip(("plain", "flip", "weak", "strong"), PINNED[shape], strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for seed in range(3):
            plan = augmenter.plan(view, 64, generator(seed, 7, "unlabeled", view))
            digest.update(augmenter.transform(images, plan).contiguous().numpy().tobytes())
        assert digest.hexdigest() == pinned, view


@pytest.mark.parametrize("view", VIEWS)
def test_applying_a_plan_never_reads_a_value_back_from_the_device(view: str) -> None:
    """Tensors on the meta device have no values, so any wait for one would fail."""
    augmenter = augmenter_for((3, 32, 32))
    images = photographs((3, 32, 32), 200).to("meta")
    result = view_of(augmenter, images, view, generator("meta"))
    assert result.shape == images.shape
    assert result.device.type == "meta"
