"""`osp.load`: a trained model from a run folder or a checkpoint file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from osp.data.gather import match
from osp.data.views import Augmenter
from osp.engine.checkpoint import load_checkpoint, load_state, unprefixed
from osp.engine.train import build_method
from osp.errors import UserError
from osp.methods.base import Method, Outputs, Task
from osp.methods.registry import is_file
from osp.recipe import Recipe

CHUNK = 256


class Model:
    """A trained classifier that also says how foreign an image looks.

    Images are uint8 arrays: N×H×W (grey), N×H×W×C or one H×W×3. Other sizes than the model's are resized.
    """

    def __init__(self, method: Method, meta: dict[str, Any]) -> None:
        self._method = method.eval()
        self.recipe = Recipe(**meta["recipe"])
        self.class_names: tuple[str, ...] = tuple(meta["class_names"])
        self.threshold = float(meta["threshold"])
        """An image whose `ood_score` lies above this looks foreign: 95 % of the validation images lie below it."""
        channels, height, width = method.task.shape
        self.shape = (channels, height, width)
        self._augmenter = Augmenter(self.shape, meta["mean"], meta["std"])

    def predict(self, images: np.ndarray) -> np.ndarray:
        """The number of the most likely class of each image (an index into `class_names`)."""
        numbers: np.ndarray = self._outputs(images).logits.argmax(axis=1)
        return numbers

    def predict_proba(self, images: np.ndarray) -> np.ndarray:
        """Class probabilities, N×K."""
        probabilities: np.ndarray = torch.from_numpy(self._outputs(images).logits).softmax(dim=1).numpy()
        return probabilities

    def ood_score(self, images: np.ndarray) -> np.ndarray:
        """How foreign each image looks; larger = more OOD."""
        return self._outputs(images).ood_score

    def features(self, images: np.ndarray) -> np.ndarray:
        """Feature vectors, N×D."""
        return self._outputs(images).features

    @torch.no_grad()
    def _outputs(self, images: np.ndarray) -> Outputs:
        batch = as_tensor(images, self.shape)
        collected: list[tuple[Tensor, Tensor, Tensor]] = []
        for chunk in torch.split(batch, CHUNK):
            collected.append(self._method.outputs(self._augmenter.normalize(chunk)))
        return Outputs(*(torch.cat(column).float().numpy() for column in zip(*collected, strict=True)))


def load(path: str | Path, *, network: nn.Module | None = None, method: str | None = None) -> Model:
    """The model of a run folder (its last weights) or of one checkpoint file.

    Loading never runs code from the folder. A model whose method is a Python file outside the package therefore needs
    that file again, as `method="./mine.py"`; one trained on a module of your own needs it as `network`.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "checkpoints" / "last.safetensors"
    tensors, meta = load_checkpoint(file)
    if "threshold" not in meta:
        raise UserError(f"The run of {file} is not finished; continue it with --resume.")
    if missing := [key for key in ("recipe", "task", "class_names", "mean", "std") if key not in meta]:
        raise UserError(f"{file} lacks {missing[0]!r}: it was made with another version.")
    recipe = Recipe(**meta["recipe"])
    if is_file(recipe.method) and method is None:
        raise UserError(
            f"This model was trained by the method file {recipe.method}. "
            f"If you trust that file, give it again: osp.load({str(path)!r}, method={recipe.method!r})."
        )
    if method is not None:
        recipe = recipe.changed(method=method)
    built = build_method(recipe, Task(**{**meta["task"], "shape": tuple(meta["task"]["shape"])}), network)
    load_state(built, unprefixed("method", tensors), file, may_lack=built.training_only)
    return Model(built, meta)


def as_tensor(images: np.ndarray, shape: tuple[int, int, int]) -> Tensor:
    """uint8 images as people have them, as the N×C×H×W tensor a model wants."""
    array = np.asarray(images)
    if array.dtype != np.uint8:
        raise UserError(f"Images must be uint8 (0 to 255); these are {array.dtype}.")
    if array.ndim == 3:  # one photograph, or grey images
        array = array[None] if array.shape[2] == 3 else array[..., None]
    if array.ndim != 4 or array.shape[3] not in (1, 3):
        raise UserError(f"Images must be N×H×W or N×H×W×C with 1 or 3 channels; these are {array.shape}.")
    if not array.size:
        raise UserError(f"There are no images to look at: these are {array.shape}.")
    channels, height, width = shape
    tensor = torch.from_numpy(array.transpose(0, 3, 1, 2).copy())
    if tensor.shape[2:] != (height, width):
        tensor = nn.functional.interpolate(tensor, size=(height, width), mode="bilinear", antialias=True)
    return torch.from_numpy(np.ascontiguousarray(match(tensor.numpy(), (channels, height, width))))
