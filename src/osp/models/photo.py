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
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from torch import nn

from osp.data.fit import fit_images
from osp.errors import UserError, printable, suggest
from osp.evaluate.estimates import Estimate
from osp.evaluate.thresholds import ACCEPT
from osp.files import replace
from osp.models.gradcam import ClassMaps, weighed
from osp.models.instant import Adapter, Instant, tensor
from osp.models.model import Answer, Model, named
from osp.nets.huggingface import PREFIX, huggingface
from osp.nets.pretrained import Backbone, efficientnet_lite0
from osp.parts.clusters import Clusters
from osp.parts.neighbors import Neighbors
from osp.parts.pool_score import PoolAsked
from osp.scores.pool import BothScore

BACKBONES: dict[str, Callable[[], Backbone]] = {"lite0": efficientnet_lite0}
PLAIN = Backbone("plain-features", "none", nn.Identity(), 0, (0.0,) * 3, (1.0,) * 3, 0, "")
"""Stands in a saved model where the user's own features were given (`osp.RobustClassifier`)."""
SAVED_AS = {"efficientnet-lite0": "lite0"}
"""Names in saved models."""
ARRAYS, FACTS = "photos.safetensors", "photos.json"
FORMAT = 4
FORMATS = (2, 3, 4)
"""Those that are read: 3 has a mean of the head's own, 4 perhaps scores that ask the pile."""
ASKED = "asked."
"""Before the names of the arrays that ask the pile: those of the score `pool`."""
_SCORING = ("labeled", "labels", "references", "reference_scores", "pile_scores", "id_scores", "id_weights")
_ARRAYS = ("mean", "weight", "bias", *_SCORING)
_ADAPTER = ("adapter_down", "adapter_bias", "adapter_up")
LARGEST, LARGEST_FEATURE = 1e9, 1e30
"""Centred features have length one, and what is computed from them stays far below the first."""
LIMITS = {"strength": (0.0, LARGEST), "temperature": (1e-3, 1e3), "smoothing": (0.0, 1.0)}
"""A temperature is chosen from 0.02 to 50; zero and less would turn the answer round."""
_NUMBERS = ("strength", "temperature", "neighbors", "smoothing")


class PhotoModel(Model):
    """A fitted answer and the backbone whose features it takes; `osp.load` and `Run.model` give one.

    >>> import osp, tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, color in ("red", (200, 0, 0)), ("blue", (0, 0, 200)):
    ...         place = Path(folder, "sorted", name)
    ...         place.mkdir(parents=True)
    ...         for size in (24, 32, 40):
    ...             Image.new("RGB", (size, size), color).save(place / f"{size}.png")
    ...     path = osp.fit(f"{folder}/sorted", None, f"{folder}/fit").path
    ...     model = osp.load(path)
    ...     said = list(model.predict_files([f"{folder}/sorted/red/32.png"]))
    >>> model
    PhotoModel(2 classes: blue, red; images 3×224×224; efficientnet-lite0)
    >>> said[0].label, [model.class_names[k] for k in model.predict(Image.new("RGB", (30, 30), (0, 0, 200)))]
    ('red', ['blue'])
    """

    def __init__(self, instant: Instant, backbone: Backbone) -> None:
        self.instant, self.backbone = instant, backbone
        self.class_names, self.size, self.network = instant.class_names, backbone.size, backbone.name

    def __call__(self, images: Any) -> Answer:
        return self.answer(fit_images(images, (3, self.size, self.size)))

    def answer(self, pixels: np.ndarray, accept: float = ACCEPT) -> Answer:
        features = self.backbone.features(pixels).numpy()
        return Answer(*self.instant.answer(features), features, self.threshold_for(accept))

    def threshold_for(self, accept: float) -> float:
        return self.instant.threshold(accept)

    def maps(self, pixels: np.ndarray) -> ClassMaps:
        """Of the logit of the predicted class, its neighbors in the pile held fixed."""
        features, places = self.backbone.features_with_places(torch.from_numpy(pixels))
        with torch.enable_grad():
            logits = self.instant.net.logits(features.cpu())
            predicted = logits.argmax(dim=1)
            (gradient,) = torch.autograd.grad(logits[torch.arange(len(pixels)), predicted].sum(), places)
        confidence = self.instant.net.probabilities(logits.detach()).amax(dim=1).numpy()
        seen = weighed(places, gradient, self.size)
        return ClassMaps(seen, predicted.numpy(), confidence, features.detach().cpu().numpy())

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
        arrays = {name: np.ascontiguousarray(getattr(self.instant, name)) for name in _ARRAYS}
        if self.instant.adapter is not None:
            arrays |= {name: np.ascontiguousarray(getattr(self.instant.adapter, name[8:])) for name in _ADAPTER}
        if self.instant.held_out is not None:
            arrays["held_out"] = np.ascontiguousarray(self.instant.held_out)
        if self.instant.head_mean is not None:
            arrays["head_mean"] = np.ascontiguousarray(self.instant.head_mean)
        if self.instant.asked is not None:
            score = BothScore(len(self.instant.mean), len(self.instant.class_names))
            score.take(self.instant.asked)
            arrays |= {ASKED + name: value.contiguous().numpy() for name, value in score.state_dict().items()}
        content = save_arrays(arrays)
        facts: dict[str, Any] = {
            "format": FORMAT,
            "class_names": self.instant.class_names,
            **{name: getattr(self.instant, name) for name in _NUMBERS},
            "estimate": asdict(self.instant.estimate) if self.instant.estimate else None,
            "backbone": {"name": self.backbone.name, "checksum": self.backbone.checksum},
            "license": self.backbone.license,
            "arrays": hashlib.blake2b(content, digest_size=16).hexdigest(),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace(folder / ARRAYS, content)
            replace(folder / FACTS, json.dumps(facts, indent=1).encode())
        except OSError as error:
            raise UserError(f"The model cannot be written to {folder}: {error.strerror or error}.") from None


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
    return PhotoModel(instant, backbone)


def read_model(folder: Path | str) -> tuple[Instant, str, str]:
    """The fitted answer of a saved model, and name and checksum of its backbone, which is not loaded."""
    folder = Path(folder)
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        content = (folder / ARRAYS).read_bytes()
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise UserError(f"{folder} holds no photo model: {missing} is missing. Run the fit again.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"The model in {folder} cannot be read: {error}. Run the fit again.") from None
    try:
        if facts["format"] not in FORMATS:
            raise UserError(
                f"The model in {folder} has format {facts['format']}; this version reads "
                f"{FORMATS[0]} to {FORMATS[-1]}. Run the fit again."
            )
        if facts.get("arrays", (made := hashlib.blake2b(content, digest_size=16).hexdigest())) != made:
            raise ValueError(f"{ARRAYS} has another checksum than {FACTS} says")
        instant = _instant(facts, load_arrays(content))
        name, checksum = str(facts["backbone"]["name"]), str(facts["backbone"]["checksum"])
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise UserError(f"The model in {folder} is damaged ({error}). Run the fit again.") from None
    return instant, name, checksum


def _check_numbers(name: str, array: np.ndarray, kinds: str) -> None:
    """Refuse an array of another type, and numbers that are none or with which no probability can be computed."""
    if array.dtype.kind not in kinds:
        raise ValueError(f"{name} holds {array.dtype}")
    most = LARGEST_FEATURE if name in ("mean", "head_mean", f"{ASKED}clusters.mean") else LARGEST
    if array.dtype.kind == "f" and not np.all(np.abs(array) <= most):  # false where one is no number
        raise ValueError(f"{name} holds a number that is infinite, far too large, or none")


def _instant(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Instant:
    """The fitted answer, with shapes that fit together."""
    values = {name: arrays[name] for name in _ARRAYS}
    names = tuple(str(name) for name in facts["class_names"])
    dim, count, references = len(values["mean"]), len(values["labels"]), len(values["references"])
    shapes = {
        "mean": (dim,),
        "weight": (len(names), dim),
        "bias": (len(names),),
        "labels": (count,),
        "labeled": (count, dim),
        "references": (references, dim),
        "reference_scores": (references,),
        "pile_scores": (references,),
        "id_weights": values["id_scores"].shape,
    }
    adapter = None
    if _ADAPTER[0] in arrays:
        adapter = Adapter(*(arrays[name] for name in _ADAPTER))
        hidden = len(adapter.bias)
        shapes |= {"adapter_down": (hidden, dim), "adapter_bias": (hidden,), "adapter_up": (dim, hidden)}
    held_out = arrays.get("held_out")
    if held_out is not None:
        shapes["held_out"] = (count, len(names))
    head_mean = arrays.get("head_mean")
    if head_mean is not None:
        shapes["head_mean"] = (dim,)
    if values["id_scores"].ndim != 1:
        raise ValueError(f"id_scores is {values['id_scores'].shape}, not a row of numbers")
    for name, shape in {**shapes, "id_scores": values["id_scores"].shape}.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} is {arrays[name].shape}, not {shape}")
        _check_numbers(name, arrays[name], "iu" if name == "labels" else "f")
    if not count or not 0 <= values["labels"].min() <= values["labels"].max() < len(names):
        raise ValueError("labels do not fit the classes")
    if not 0 <= int(facts["neighbors"]) <= references:
        raise ValueError(f"{facts['neighbors']} neighbors among {references}")
    for name, (least, most) in LIMITS.items():
        if not least <= float(facts[name]) <= most:
            raise ValueError(f"{name} is {float(facts[name]):g}; it lies between {least:g} and {most:g}")
    return Instant(
        class_names=names,
        strength=float(facts["strength"]),
        temperature=float(facts["temperature"]),
        smoothing=float(facts["smoothing"]),
        neighbors=int(facts["neighbors"]),
        estimate=Estimate(**facts["estimate"]) if facts["estimate"] else None,
        held_out=held_out,
        adapter=adapter,
        head_mean=head_mean,
        asked=_asked(arrays, len(names), dim),
        **values,
    )


def _asked(arrays: dict[str, np.ndarray], classes: int, dim: int) -> PoolAsked | None:
    """What asks the pile, with shapes that fit together; None where the model has none."""
    found = {name.removeprefix(ASKED): array for name, array in arrays.items() if name.startswith(ASKED)}
    if not found:
        return None
    score = BothScore(dim, classes)
    names = set(score.state_dict())
    if found.keys() != names:
        raise ValueError(f"of the arrays {ASKED}* {', '.join(sorted(names ^ found.keys()))} are missing or too many")
    starts, free, width = (
        len(found["clusters.free"]),
        found["clusters.free"].shape[1:][:1],
        found["clusters.basis"].shape[1:],
    )
    nodes, near = found["neighbors.nodes"].shape[:1], found["neighbors.basis"].shape[1:]
    shapes = {
        "clusters.mean": (dim,),
        "clusters.basis": (dim, *width),
        "clusters.known": (starts, classes, *width),
        "clusters.free": (starts, *free, *width),
        "neighbors.basis": (dim, *near),
        "neighbors.nodes": (*nodes, *near),
        "neighbors.values": nodes,
        "middle": (3,),
        "spread": (3,),
    }
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise ValueError(f"{ASKED}{name} is {found[name].shape}, not {shape}")
        _check_numbers(ASKED + name, found[name], "f")
    if starts == 0 or nodes == (0,) or not (found["spread"] > 0).all():
        raise ValueError(f"the arrays {ASKED}* hold nothing that can be asked")
    clusters = Clusters(*(tensor(found[f"clusters.{name}"]) for name in ("mean", "basis", "known", "free")))
    basis, graph, values = (tensor(found[f"neighbors.{name}"]) for name in ("basis", "nodes", "values"))
    neighbors = Neighbors(basis, graph, values)
    return PoolAsked(clusters, neighbors, tensor(found["middle"]), tensor(found["spread"]))
