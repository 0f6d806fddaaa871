"""The model of a fit: a frozen backbone and the instant answer on its features.

A saved model is a folder with `photos.safetensors` (arrays) and `photos.json` (names, numbers): data only, no pickle,
nothing in it names code that is run. The backbone is named with the checksum of its weights, not stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as save_arrays
from torch import nn

from osp.data.fit import fit_images
from osp.errors import UserError, printable, suggest
from osp.evaluate.estimates import Estimate
from osp.evaluate.thresholds import ACCEPT
from osp.files import replace
from osp.models.gradcam import ClassMaps, class_maps
from osp.models.instant import Adapter, Instant, tensor
from osp.models.model import Answer, Model, named
from osp.nets.huggingface import PREFIX, huggingface
from osp.nets.pretrained import Backbone, efficientnet_lite0
from osp.runs.checkpoint import load_state
from osp.runs.fitted import ALWAYS, ARRAYS, ASKED, FACTS, read_model_files
from osp.runs.schema import PhotoFacts
from osp.scores.pool import BothScore

BACKBONES: dict[str, Callable[[], Backbone]] = {"lite0": efficientnet_lite0}
PLAIN = Backbone("plain-features", "none", nn.Identity(), 0, (0.0,) * 3, (1.0,) * 3, 0, "")
"""Stands in a saved model where the user's own features were given (`osp.RobustClassifier`)."""
SAVED_AS = {"efficientnet-lite0": "lite0"}
"""Names in saved models."""
FORMAT = 4
ADAPTER = "adapter_"
_PERHAPS = ("held_out", "head_mean", "groups")
_NUMBERS = ("strength", "temperature", "neighbors", "smoothing")


class PhotoModel(Model):
    """A fitted answer and the backbone whose features it takes; `osp.load` and `Run.model` give one.

    `osp.fit` has an example.
    """

    def __init__(self, instant: Instant, backbone: Backbone) -> None:
        self.instant, self.backbone = instant, backbone
        self.class_names, self.size, self.network = instant.class_names, backbone.size, backbone.name

    def __call__(self, images: Any) -> Answer:
        return self.answer(fit_images(images, (3, self.size, self.size)))

    def answer(self, pixels: np.ndarray, accept: float = ACCEPT) -> Answer:
        features = self.backbone.features(pixels).numpy()
        return answer_of(self.instant, features, self.threshold_for(accept))

    def threshold_for(self, accept: float) -> float:
        return self.instant.threshold(accept)

    def maps(self, pixels: np.ndarray) -> ClassMaps:
        """Of the logit of the predicted class, its neighbors in the pile held fixed."""
        features, places = self.backbone.features_with_places(torch.from_numpy(pixels))
        with torch.enable_grad():
            logits = self.instant.net.logits(features.cpu())
        return class_maps(features, places, logits, self.instant.net.probabilities(logits), (self.size,) * 2)

    @property
    def license(self) -> str:
        return self.backbone.license

    def comparable(self, features: np.ndarray) -> np.ndarray:
        return self.instant.center(features)

    def labeled(self) -> tuple[np.ndarray, np.ndarray]:
        return self.instant.labeled, self.instant.labels

    def __repr__(self) -> str:
        return f"PhotoModel({named(self.class_names)}; images 3×{self.size}×{self.size}; {self.network})"

    def save(self, folder: Path | str) -> None:
        """Write the model; the facts come last, so that a folder with them is complete."""
        folder = Path(folder)
        arrays = {name: getattr(self.instant, name) for name in (*ALWAYS, *_PERHAPS)}
        if self.instant.adapter is not None:
            arrays |= {ADAPTER + name: each for name, each in vars(self.instant.adapter).items()}
        if self.instant.asked is not None:
            score = BothScore(len(self.instant.mean), len(self.instant.class_names))
            score.take(self.instant.asked)
            arrays |= {ASKED + name: each.numpy() for name, each in score.state_dict().items()}
        content = save_arrays({name: np.ascontiguousarray(each) for name, each in arrays.items() if each is not None})
        facts: dict[str, Any] = {
            "format": FORMAT,
            "class_names": self.instant.class_names,
            **{name: getattr(self.instant, name) for name in _NUMBERS},
            "estimate": asdict(self.instant.estimate) if self.instant.estimate else None,
            "backbone": {"name": self.backbone.name, "checksum": self.backbone.checksum},
            "license": self.backbone.license,
            "arrays": hashlib.blake2b(content, digest_size=16).hexdigest(),
        }
        if self.instant.cut is not None:
            facts["cut"] = self.instant.cut
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace(folder / ARRAYS, content)
            replace(folder / FACTS, json.dumps(facts, indent=1).encode())
        except OSError as error:
            raise UserError(f"The model cannot be written to {folder}: {error.strerror or error}.") from None


def answer_of(instant: Instant, features: np.ndarray, limit: float) -> Answer:
    """All that the instant answer says of raw features, with this threshold."""
    probabilities, scores = instant.answer(features)
    belongs = None if instant.belonging is None else instant.belonging.chance(scores)
    return Answer(probabilities, scores, features, limit, instant.group_of(features), belongs)


def open_backbone(name: str, fetch: bool = True) -> Backbone:
    """The backbone of this name, ready to use: one of `BACKBONES`, or `hf:NAME_OR_FOLDER`.

    Without `fetch` nothing is downloaded: for names that come from a folder and not from the user.
    """
    if name.startswith(PREFIX):
        return huggingface(name, fetch)
    known = SAVED_AS.get(name, name)
    if known not in BACKBONES:
        raise UserError(f"The backbone {name!r} is unknown.{suggest(name, [*BACKBONES, f'{PREFIX}FOLDER'])}")
    return BACKBONES[known]()


def load_model(folder: Path | str, backbone: Backbone | None = None) -> PhotoModel:
    """Read a saved model; the backbone is loaded by its name unless given."""
    instant, name, checksum = read_model(folder)
    if backbone is None:
        if name == PLAIN.name:
            raise UserError(f"The model in {folder} was fitted on plain features, not on images.")
        try:
            backbone = open_backbone(name, fetch=False)
        except UserError as error:
            raise UserError(f"The model in {folder} looks at photos with {printable(name)}. {error}") from None
    if backbone.checksum != checksum:
        raise UserError(
            f"The model in {folder} was fitted on features of {name} ({checksum[:8]}), "
            f"not of {backbone.name} ({backbone.checksum[:8]})."
        )
    if backbone is not PLAIN and backbone.feature_dim != len(instant.mean):
        raise UserError(
            f"The model in {folder} is damaged: {len(instant.mean)} features, {printable(name)} gives "
            f"{backbone.feature_dim}. Run the fit again."
        )
    return PhotoModel(instant, backbone)


def read_model(folder: Path | str) -> tuple[Instant, str, str]:
    """The fitted answer of a saved model, and name and checksum of its backbone, which is not loaded."""
    facts, arrays = read_model_files(Path(folder))
    try:
        return _instant(facts, arrays, Path(folder)), facts.backbone.name, facts.backbone.checksum
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"The model in {folder} is damaged ({error}). Run the fit again.") from None


def _instant(facts: PhotoFacts, arrays: dict[str, np.ndarray], folder: Path) -> Instant:
    """The fitted answer of numbers and arrays that were checked."""
    adapter, asked = (
        {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        for prefix in (ADAPTER, ASKED)
    )
    score = BothScore(len(arrays["mean"]), len(facts.class_names))
    if asked:
        load_state(score, {name: tensor(array) for name, array in asked.items()}, folder)
    fields: dict[str, Any] = {name: getattr(facts, name) for name in _NUMBERS}
    fields |= {name: arrays.get(name) for name in (*ALWAYS, *_PERHAPS)}
    return Instant(
        **fields,
        class_names=tuple(facts.class_names),
        estimate=None if facts.estimate is None else Estimate(**facts.estimate.model_dump(exclude_unset=True)),
        adapter=Adapter(**adapter) if adapter else None,
        asked=score.part if asked else None,
        cut=facts.cut,
    )
