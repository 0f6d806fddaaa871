"""Grad-CAM (Selvaraju et al. 2017): where in an image a network sees a class, or the OOD semantics of a bank feature.

    map = ReLU(sum_k w_k A_k),   w_k = mean over places of dy/dA_k,   A = maps of the network's `cam_layer`

y is the logit of the predicted class, or z·o/‖o‖ for an OOD feature o of the bank: the length of the part of the
image's feature z that OSP prunes (Eq. 7). The rows of the paper's Figure 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from osp.evaluate.metrics import unit_rows
from osp.nets import Network, as_tested

if TYPE_CHECKING:
    from osp.models.trained import Predictor

Target = Callable[[Tensor], Tensor]
"""From features N×D to the N numbers y."""


def grad_cam(net: Network, images: Tensor, target: Target) -> np.ndarray:
    """Maps N×H×W of the size of the images, each scaled to a maximum of 1 (all zero where nothing speaks for y).

    `images` are normalized as the network wants them. In evaluation mode each image is on its own: the gradient of the
    sum of the y is that of each.
    """
    with as_tested(net), torch.enable_grad():
        features, maps = net.encode_with_maps(images.detach())
        return weighed(maps, target(features), tuple(images.shape[2:]))


def weighed(places: Tensor, y: Tensor, size: tuple[int, ...]) -> np.ndarray:
    """The formula, from A and y, for images of this height and width: A are maps N×C×h×w, or tokens N×T×C, the last h·h
    of which are the places row by row (a class token and registers come before them)."""
    (gradient,) = torch.autograd.grad(y.sum(), places)
    if places.ndim == 3:
        places, gradient = (_as_maps(each) for each in (places, gradient))
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    seen = (weights * places.detach()).sum(dim=1, keepdim=True).clamp(min=0)
    seen = functional.interpolate(seen, size=size, mode="bilinear", align_corners=False)[:, 0]
    scaled: np.ndarray = (seen / seen.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)).cpu().numpy()
    return scaled


def _as_maps(tokens: Tensor) -> Tensor:
    side = math.isqrt(tokens.shape[1])
    places = tokens[:, -side * side :].transpose(1, 2)
    return places.reshape(*places.shape[:2], side, side)


@dataclass(frozen=True)
class ClassMaps:
    """Grad-CAM of the predicted classes of images."""

    maps: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    features: np.ndarray


def class_maps(
    features: Tensor, places: Tensor, logits: Tensor, probabilities: Tensor, size: tuple[int, ...]
) -> ClassMaps:
    """What speaks for the classes that a model predicts, from what a pass with a graph gave."""
    predicted = logits.argmax(dim=1)
    maps = weighed(places, logits[torch.arange(len(logits)), predicted], size)
    confidence = probabilities.detach().amax(dim=1)
    return ClassMaps(maps, predicted.numpy(), confidence.numpy(), features.detach().cpu().numpy())


@dataclass(frozen=True)
class Partners:
    """For each image an OOD feature of the bank, and where its semantics are in the image."""

    found: np.ndarray
    """bool: whether the bank has a feature of the predicted class."""
    pool_rows: np.ndarray
    """The image that the feature came from, as a row of the pool."""
    maps: np.ndarray


def choose_partners(features: np.ndarray, predicted: np.ndarray, bank: dict[str, np.ndarray]) -> np.ndarray:
    """For each image the bank row of its predicted class whose feature points most nearly its way; -1 without one.

    In training the partner is drawn at random from the same queue (Eq. 6); a picture shows the most aliased.
    """
    units = unit_rows(bank["features"].astype(np.float32))
    alike = np.where(bank["classes"][None] == predicted[:, None], features @ units.T, -np.inf)
    best: np.ndarray = np.where(np.isfinite(alike).any(axis=1), alike.argmax(axis=1), -1)
    return best


def partner_maps(model: Predictor, images: np.ndarray, own: ClassMaps, bank: dict[str, np.ndarray]) -> Partners:
    """Grad-CAM of z·o/‖o‖ for the partner o of each image."""
    rows = choose_partners(own.features, own.predicted, bank)
    partners = torch.from_numpy(bank["features"][np.maximum(rows, 0)].astype(np.float32))
    directions = functional.normalize(partners, dim=1)
    pixels = model.normalize(torch.from_numpy(images))
    maps = grad_cam(model.net, pixels, lambda found: (found * directions).sum(dim=1))
    return Partners(rows >= 0, bank["ids"][np.maximum(rows, 0)], np.where((rows >= 0)[:, None, None], maps, 0))


def overlay(image: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """A uint8 H×W×3 image: the picture (C×H×W) in grey under the map, blue where it is 0 and red where it is 1."""
    from matplotlib import colormaps

    grey = image.astype(np.float32).mean(axis=0)[..., None] / 255
    colored = colormaps["jet"](seen)[..., :3]
    mixed: np.ndarray = np.rint(255 * (0.45 * grey + 0.55 * colored)).astype(np.uint8)
    return mixed
