"""A trained model as one file that runs without osp: ONNX, or a torch.export program.

Input `images`: uint8 N×H×W×C (RGB, or one grey channel), of the model's size, any N. Outputs: `probabilities` N×K and
`ood_score` N (larger = more OOD). What else is needed to use it stands in the file's metadata: `class_names` (JSON),
`threshold` (an image above it looks unknown), `score`, `input`, `preprocessing` (how osp makes such pixels of a file),
`backbone`, `license`. A program keeps the same as JSON in its extra file `osp.json`. Nothing is written before the
exported model has said of some images what the model says.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from osp.errors import UserError, first_line
from osp.files import write_bytes
from osp.models.instant import InstantNet
from osp.models.model import Answer, Model
from osp.models.photo import PhotoModel
from osp.models.trained import Predictor, PredictorNet
from osp.version import __version__, install

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OUTPUTS = ("probabilities", "ood_score")
PROGRAM_FACTS = "osp.json"
TOLERANCE = 2e-3
"""Largest difference from the model: of probabilities, and of scores in units of their largest size."""


@dataclass(frozen=True)
class Exportable:
    """What a file is made of."""

    module: nn.Module
    """uint8 N×H×W×C to probabilities N×K and OOD scores N."""
    shape: tuple[int, int, int]
    """Height, width, channels."""
    facts: dict[str, str]
    answer: Callable[[np.ndarray], Answer]
    """The same from the model itself, which the file is checked against."""


def export(
    model: Predictor | PhotoModel, onnx: Path | None = None, program: Path | None = None, score: str | None = None
) -> dict[str, str]:
    """Write the model to an ONNX file, a torch program, or both; gives the metadata. Existing files are refused."""
    check_targets(onnx, program)
    made = _of_photos(model, score) if isinstance(model, PhotoModel) else _of_predictor(model, score)
    images = _images(made.shape)
    with _quiet():
        traced = _trace(made)
        files: list[tuple[Path, bytes]] = []
        if program is not None:
            files.append((program, _program(traced, made, images)))
        if onnx is not None:
            files.append((onnx, _onnx(traced, made, images)))
    for path, content in files:
        _refuse_existing(path)  # once more: tracing takes a while
        write_bytes(path, content)
    return made.facts


def check_targets(onnx: Path | None, program: Path | None) -> None:
    """Refuse what cannot be written, before any work is done."""
    if onnx is None and program is None:
        raise UserError("There is nothing to export to: name a file, for ONNX or for a torch program.")
    if onnx is not None and onnx == program:
        raise UserError(f"{onnx} cannot be both: name another file for the torch program.")
    for path in (onnx, program):
        if path is not None:
            _refuse_existing(path)
    if onnx is not None:
        for package in PACKAGES:
            try:
                import_module(package)
            except ImportError:
                raise UserError(f"ONNX needs the package {package}. Run: {install('export')}") from None


def _refuse_existing(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} exists already, and is not overwritten. Name another file.")
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} to write {path.name} into.")


class PhotoNet(nn.Module):
    """Preprocessing, backbone and instant answer of a photo model."""

    def __init__(self, model: PhotoModel) -> None:
        super().__init__()
        self.network, self.answer = model.backbone.network, InstantNet(model.instant)
        self.normalize = model.backbone.normalize

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits, scores = self.answer(self.network(self.normalize(images.permute(0, 3, 1, 2))))
        return self.answer.probabilities(logits), scores


def _of_predictor(model: Predictor, score: str | None) -> Exportable:
    net = PredictorNet(model, score).eval().requires_grad_(False)
    channels, height, width = model.shape
    facts = _facts(model, (height, width, channels), net.name, model.thresholds[net.name])
    return Exportable(net, (height, width, channels), facts, partial(model, score=net.name))


def _of_photos(model: PhotoModel, score: str | None) -> Exportable:
    own = "neighbors" if model.instant.asked is None else "pool"
    if score not in (None, own):
        raise UserError(f"This photo model has one OOD score, {own!r}; {score!r} is none of its own.")
    shape = (model.size, model.size, 3)
    facts = _facts(model, shape, own, model.threshold)
    return Exportable(PhotoNet(model).eval().requires_grad_(False), shape, facts, model)


def _facts(model: Model, shape: tuple[int, int, int], score: str, threshold: float) -> dict[str, str]:
    height, width, channels = shape
    return {
        "class_names": json.dumps(list(model.class_names), ensure_ascii=False),
        "threshold": repr(float(threshold)),
        "score": score,
        "score_direction": "larger = more OOD",
        "input": f"uint8 N x {height} x {width} x {channels}, {'RGB' if channels == 3 else 'grey'}, 0 to 255",
        "preprocessing": preprocessing(height, width, channels),
        "backbone": model.network,
        "license": model.license,
        "producer": f"osp {__version__}",
    }


def preprocessing(height: int, width: int, channels: int) -> str:
    """How `osp.data.decode` makes the input of an image file, in steps of Pillow; docs/photos-more.md has the code."""
    if height != width:
        return f"the model's own: images of {height} x {width} pixels are passed as they are"
    grey = "; convert to grey (L)" if channels == 1 else ""
    return (
        f"with Pillow: JPEG: draft(None, ({2 * height}, {2 * height})); upright by EXIF; RGB, on white where "
        f"transparent; the middle square, resized to {height} x {height} by BICUBIC, box=square{grey}"
    )


def _images(shape: tuple[int, int, int]) -> np.ndarray:
    """To check with: noise, a ramp and a plain image."""
    noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    ramp = np.broadcast_to(np.linspace(0, 255, shape[1])[None, :, None], shape).astype(np.uint8)
    return np.stack([noise, ramp, np.full(shape, 90, np.uint8)])


def _trace(made: Exportable) -> torch.export.ExportedProgram:
    """The graph for any number of images. What cannot be followed as it runs may be read from its code (`strict`)."""
    example = (torch.from_numpy(_images(made.shape)[:2]),)
    shapes = ({0: torch.export.Dim("batch")},)
    reason = ""
    for strict in (False, True):
        try:
            return torch.export.export(made.module, example, dynamic_shapes=shapes, strict=strict)
        except Exception as error:  # whatever somebody's module or score does
            reason = reason or f"{type(error).__name__}: {first_line(error)}"
    raise UserError(
        f"The model with the OOD score {made.facts['score']!r} cannot be exported ({reason}). Choose another score, "
        "such as softmax."
    )


def _program(traced: torch.export.ExportedProgram, made: Exportable, images: np.ndarray) -> bytes:
    run = traced.module()
    _check(made, images, lambda part: tuple(out.numpy() for out in run(torch.from_numpy(part))), "torch program")
    buffer = io.BytesIO()
    torch.export.save(traced, buffer, extra_files={PROGRAM_FACTS: json.dumps(made.facts, ensure_ascii=False)})
    return buffer.getvalue()


def _onnx(traced: torch.export.ExportedProgram, made: Exportable, images: np.ndarray) -> bytes:
    import onnxruntime

    try:
        made_onnx = torch.onnx.export(
            traced, input_names=["images"], output_names=list(OUTPUTS), dynamo=True, verbose=False
        )
        assert made_onnx is not None
        proto = made_onnx.model_proto
        for value_info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
            for size in value_info.type.tensor_type.shape.dim[:1]:
                if size.dim_param:  # torch numbers it
                    size.dim_param = "batch"
        for key, value in made.facts.items():
            proto.metadata_props.add(key=key, value=value)
        content: bytes = proto.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UserError(
            f"ONNX has no way to say what the OOD score {made.facts['score']!r} or the network does "
            f"({type(error).__name__}: {first_line(error)}). Choose another score, or export a torch program."
        ) from None
    _check(made, images, lambda part: tuple(session.run(list(OUTPUTS), {"images": part})), "ONNX file")
    return content


def _check(made: Exportable, images: np.ndarray, run: Callable[[np.ndarray], Any], what: str) -> None:
    """That the file says what the model says, of one image and of several."""
    for part in (images, images[:1]):
        said = made.answer(part)
        for name, right, got in zip(OUTPUTS, (said.probabilities, said.ood_score), run(part), strict=True):
            unit = 1.0 if name == OUTPUTS[0] else max(1.0, float(np.abs(right).max()))
            gap = float(np.abs(right - got).max()) / unit
            if right.shape != got.shape or not gap <= TOLERANCE:
                raise UserError(f"The {what} differs from the model by {gap:.2g} in {name}; nothing was written.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' notes to programmers."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
