"""A predictor for photographs: files in, class, probability, OOD score and in/out back.

A saved model is a folder with `photos.safetensors` (arrays) and `photos.json` (names, numbers): data only, no pickle,
nothing in it names code that is run. The backbone is named with the checksum of its weights, not stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from osp.data.decode_pool import decode_all
from osp.data.source import Progress
from osp.errors import UserError, printable
from osp.files import replace
from osp.nets.pretrained import Backbone
from osp.photos.backbones import open_backbone
from osp.photos.decisions import Decision
from osp.photos.estimates import Estimate
from osp.photos.instant import Adapter, Instant

ARRAYS, FACTS = "photos.safetensors", "photos.json"
FORMAT, FORMAT_WITH_HEAD_MEAN = 2, 3
"""The second is written only where the head has a mean of its own: versions that do not know of it would misread it."""
_SCORING = ("labeled", "labels", "references", "reference_scores", "pile_scores", "id_scores", "id_weights")
_ARRAYS = ("mean", "weight", "bias", *_SCORING)
_ADAPTER = ("adapter_down", "adapter_bias", "adapter_up")
LARGEST, LARGEST_FEATURE = 1e9, 1e30
"""Centred features have length one, and what is computed from them stays far below the first."""
LIMITS = {"strength": (0.0, LARGEST), "temperature": (1e-3, 1e3), "smoothing": (0.0, 1.0)}
"""A temperature is chosen from 0.02 to 50; zero and less would turn the answer round."""
_NUMBERS = ("strength", "temperature", "neighbors", "smoothing")


@dataclass(frozen=True)
class Prediction:
    """What is said of one file; only `file` and `reason` where it could not be read."""

    file: str
    decision: Decision | None
    probabilities: tuple[float, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class PhotoModel:
    """A fitted answer and the backbone whose features it takes."""

    instant: Instant
    backbone: Backbone

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.instant.class_names

    def predict(
        self, files: Sequence[str | Path], accept: float = 0.95, progress: Progress | None = None
    ) -> Iterator[Prediction]:
        """One prediction per file, in order, a batch at a time; a file that cannot be read does not stop the rest."""
        paths = [str(file) for file in files]
        limit = self.instant.threshold(accept)
        done = 0
        for images, skipped in decode_all(paths, self.backbone.size):
            span = range(done, done + len(images) + len(skipped))
            done = span.stop
            reasons = dict(skipped)
            features = self.backbone.features(images).numpy()
            probabilities, scores = self.instant.predict_proba(features), self.instant.ood_score(features)
            row = iter(range(len(images)))
            for position in span:
                if position in reasons:
                    yield Prediction(paths[position], None, reason=reasons[position])
                    continue
                i = next(row)
                best = int(probabilities[i].argmax())
                name, score = self.instant.class_names[best], float(scores[i])
                decision = Decision(paths[position], name, float(probabilities[i, best]), score, score <= limit)
                yield Prediction(paths[position], decision, tuple(float(p) for p in probabilities[i]))
            if progress:
                progress(done, len(paths), "Predicting")

    def save(self, folder: Path | str) -> None:
        """Write the model; the facts come last, so that a folder with them is whole."""
        folder = Path(folder)
        arrays = {name: np.ascontiguousarray(getattr(self.instant, name)) for name in _ARRAYS}
        if self.instant.adapter is not None:
            arrays |= {name: np.ascontiguousarray(getattr(self.instant.adapter, name[8:])) for name in _ADAPTER}
        if self.instant.held_out is not None:
            arrays["held_out"] = np.ascontiguousarray(self.instant.held_out)
        if self.instant.head_mean is not None:
            arrays["head_mean"] = np.ascontiguousarray(self.instant.head_mean)
        content = save_arrays(arrays)
        facts: dict[str, Any] = {
            "format": FORMAT if self.instant.head_mean is None else FORMAT_WITH_HEAD_MEAN,
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


def load_model(folder: Path | str, backbone: Backbone | None = None) -> PhotoModel:
    """Read a saved model; the backbone is loaded by its name unless given."""
    instant, name, checksum = read_model(folder)
    if backbone is None:
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
        if facts["format"] not in (FORMAT, FORMAT_WITH_HEAD_MEAN):
            raise UserError(
                f"The model in {folder} has format {facts['format']}; this version reads {FORMAT} and "
                f"{FORMAT_WITH_HEAD_MEAN}. Run the fit again."
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
    most = LARGEST_FEATURE if name in ("mean", "head_mean") else LARGEST
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
    head_mean = arrays["head_mean"] if facts["format"] == FORMAT_WITH_HEAD_MEAN else None
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
        raise ValueError(f"{facts['neighbors']} neighbours among {references}")
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
        **values,
    )
