"""The model of a run of `osp.train`: preprocessing, network, OOD scores and threshold; no method, no recipe."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn

from osp import scores
from osp.data.fit import fit_images
from osp.data.source import Progress
from osp.errors import UserError, suggest
from osp.evaluate.metrics import softmax, unit_rows
from osp.evaluate.predictions import Group, Predictions
from osp.evaluate.thresholds import ACCEPT, check_accept, fit_temperature, thresholds
from osp.methods.base import Method
from osp.models.gradcam import ClassMaps, class_maps
from osp.models.model import Answer, Model, Prediction, named
from osp.nets import build_network
from osp.nets.registry import find, size_of
from osp.parts.one_vs_all import linear_layers
from osp.plugins import is_file, plain_name, trust
from osp.recipe.code import files_in
from osp.recipe.plan import CUSTOM, Plan
from osp.runs.checkpoint import load_checkpoint, load_state, prefixed, save_checkpoint, unprefixed
from osp.runs.folder import RunFolder
from osp.runs.schema import Number, check
from osp.scores import Score

CHUNK = 256


class Predictor(Model):
    """A trained classifier that also says how unknown an image looks; `osp.load` and `Run.model` give one.

    Images are a uint8 array (N×H×W, N×H×W×C or one H×W×3), a path, a Pillow image, or a list of any of these. Other
    sizes than the model's are cropped to the middle square and resized as in training. What cannot be read as images,
    and a score that the model does not have, is a UserError.

    Attributes
    ----------
    class_names : names of the K classes, in the order of the probabilities.
    shape : channels, height and width of the images that the network sees.
    score, threshold : name of the reported OOD score, and the value above which an image counts as OOD.
    scores, thresholds : all OOD scores of the model and their thresholds, by name.
    about : what it was trained on and how, in words.

    >>> import osp, tempfile
    >>> from osp.engine.train import train  # osp.train without its picture
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(osp.Recipe(data="digits", method="supervised", scale="demo", steps=2), folder)
    ...     model = osp.load(run.path)
    >>> model
    Predictor(6 classes: 0, 1, 2, 3, 4, 5; images 1×8×8; score pool; supervised on digits)
    >>> images = np.zeros((2, 8, 8), np.uint8)
    >>> said = model(images)  # everything, from one pass
    >>> said.probabilities.shape, said.is_ood.tolist() == (said.ood_score > model.threshold).tolist()
    ((2, 6), True)
    >>> model.predict(images).shape, model.predict_proba(images).shape, model.features(images).shape[0]
    ((2,), (2, 6), 2)
    >>> model.ood_score(images, score="energy").shape
    (2,)
    >>> model.ood_score(images, score="enrgy")
    Traceback (most recent call last):
    osp.errors.UserError: This model has no OOD score 'enrgy'. Did you mean 'energy'?
    """

    def __init__(
        self, net: Any, kept_scores: Mapping[str, Score], meta: Mapping[str, Any], run: RunFolder | None = None
    ) -> None:
        self.net = net.eval()
        self.scores: dict[str, Score] = dict(kept_scores)
        self._run = run
        self.class_names: tuple[str, ...] = tuple(meta["class_names"])
        self.shape: tuple[int, int, int] = tuple(meta["shape"])
        self.size = self.shape[1]
        self.network: str = meta["network"]
        self.score: str = meta["score"]
        self.thresholds: dict[str, float] = {name: float(each["threshold"]) for name, each in meta["scores"].items()}
        self.about: dict[str, Any] = dict(meta.get("about", {}))
        """In files of version 0.1 `method` is the method's version."""
        self._scale = torch.tensor([1 / (255 * each) for each in meta["std"]]).view(1, -1, 1, 1)
        ratios = [mean / std for mean, std in zip(meta["mean"], meta["std"], strict=True)]
        self._offset = -torch.tensor(ratios).view(1, -1, 1, 1)

    def __call__(self, images: Any, score: str | None = None) -> Answer:
        """Classes, probabilities, OOD scores and features of images, from one pass.

        `score` names another OOD score than the reported one, for `ood_score` and `is_ood`.
        """
        asked = PredictorNet(self, score)
        with torch.no_grad():
            chunks = torch.split(torch.from_numpy(fit_images(images, self.shape)), CHUNK)
            columns = zip(*map(asked.outputs, chunks), strict=True)
            features, logits, values = (torch.cat(column).float() for column in columns)
        return Answer(logits.softmax(dim=1).numpy(), values.numpy(), features.numpy(), self.thresholds[asked.name])

    def ood_score(self, images: Any, score: str | None = None) -> np.ndarray:
        """How unlike the classes each image looks; larger = more OOD. `score` names another than the reported one."""
        return self(images, score).ood_score

    def predict_files(
        self, files: str | Path | Sequence[str | Path], accept: float = ACCEPT, progress: Progress | None = None
    ) -> Iterator[Prediction]:
        _, height, width = self.shape
        if height != width:
            raise UserError(
                f"This model looks at images of {height}×{width} pixels, but files are cut to squares. Read them "
                "yourself and give the model arrays of that size (in Python: osp.load(...)(images))."
            )
        return super().predict_files(files, accept, progress)

    def answer(self, pixels: np.ndarray, accept: float = ACCEPT) -> Answer:
        """With probabilities calibrated on the validation images of the run."""
        said = self(pixels.transpose(0, 2, 3, 1))
        logs = np.log(np.maximum(said.probabilities.astype(np.float64), 1e-30))
        limit = self.threshold_for(accept)
        return replace(said, probabilities=softmax(logs / self._temperature), threshold=limit)

    def threshold_for(self, accept: float) -> float:
        check_accept(accept)
        if accept == ACCEPT:
            return self.thresholds[self.score]
        known = self._known
        if known is None or self.score not in known.scores:
            raise UserError(
                f"accept={accept}: this model has only its threshold for {ACCEPT}; others come from predictions.npz "
                "of its run, which is not there."
            )
        return float(np.quantile(known.scores[self.score], accept))

    def maps(self, pixels: np.ndarray) -> ClassMaps:
        images = torch.from_numpy(fit_images(pixels.transpose(0, 2, 3, 1), self.shape))
        features, places = self.net.encode_with_maps(self.normalize(images))
        with torch.enable_grad():
            logits = self.net.classify(features)
        return class_maps(features, places, logits, logits.softmax(dim=1), self.shape[1:])

    @property
    def license(self) -> str:
        if self.network == CUSTOM or is_file(self.network):
            return "that of the module you gave"
        return find(self.network)[0].license

    def comparable(self, features: np.ndarray) -> np.ndarray:
        return unit_rows(features.astype(np.float32))

    def labeled(self) -> tuple[np.ndarray, np.ndarray]:
        group = self._group("labeled")
        if group is None or group.targets is None:
            return np.empty((0, 1), np.float32), np.empty(0, np.int64)
        return self.comparable(group.features), group.targets

    def labeled_rows(self) -> np.ndarray:
        """Where the labeled images are among the training images of the run."""
        group = self._group("labeled")
        return np.empty(0, np.int64) if group is None else group.ids

    @cached_property
    def _validation(self) -> Group | None:
        """Images known to belong that were not learned from."""
        return self._group("validation")

    @cached_property
    def _known(self) -> Group | None:
        """Images that thresholds are set by, as for the stored ones."""
        return self._validation or self._group("labeled")

    @cached_property
    def _temperature(self) -> float:
        known = self._validation
        if known is None or known.targets is None:
            return 1.0
        return fit_temperature(known.logits.astype(np.float64), known.targets, np.ones(len(known)))

    def _group(self, name: str) -> Group | None:
        """Predictions that the run has kept of some images; None without any."""
        if self._run is None or not self._run.predictions.exists():
            return None
        return Predictions.load(self._run.predictions).group(name)

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 N×C×H×W as the network wants them: (pixel/255 - mean) / std."""
        return images.to(torch.float32).mul_(self._scale).add_(self._offset)

    def __repr__(self) -> str:
        size = "×".join(map(str, self.shape))
        words = [str(self.about[key]) for key in ("method", "data") if key in self.about]
        trained = " on ".join(words if "method_version" in self.about else words[-1:])
        return f"Predictor({named(self.class_names)}; images {size}; score {self.score}; {trained})"


class PredictorNet(nn.Module):
    """Preprocessing, encoder, classifier and one OOD score of a run: to ask, and to export."""

    def __init__(self, model: Predictor, score: str | None) -> None:
        super().__init__()
        self.name = model.score if score is None else score
        if self.name not in model.scores:
            raise UserError(f"This model has no OOD score {self.name!r}.{suggest(self.name, list(model.scores))}")
        self.encoder, self.classifier, self.score = model.net.encoder, model.net.classifier, model.scores[self.name]
        self.normalize = model.normalize

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features, logits and OOD scores of uint8 N×C×H×W."""
        features = self.encoder(self.normalize(images)).float()
        logits = self.classifier(features)
        return features, logits, self.score(features, logits, self.classifier)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and OOD scores of uint8 N×H×W×C."""
        _, logits, scores = self.outputs(images.permute(0, 3, 1, 2))
        return logits.softmax(dim=1), scores


def save_predictor(
    path: Path,
    method: Method,
    fitted: Mapping[str, Score],
    reported: str,
    known: Mapping[str, np.ndarray],
    plan: Plan,
    class_names: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
) -> None:
    """The model of a method as `osp.load` reads it, with the weights that it has now.

    `known` are the scores of images known to be ID: thresholds come from them, and scores without any are left out.
    """
    net, limits = method.net, thresholds(known)
    layers = [layer for layer in net.classifier.modules() if isinstance(layer, nn.Linear)]
    versions = {"method_version" if key == "method" else key: value for key, value in plan.versions.items()}
    kept = {name: score for name, score in fitted.items() if name in limits}
    meta = {
        "network": plan.network,
        "shape": list(method.task.shape),
        "class_names": list(class_names),
        "mean": list(mean),
        "std": list(std),
        "layers": [layers[0].in_features, *(layer.out_features for layer in layers)],
        "score": reported,
        "scores": {name: {"config": score.config(), "threshold": limits[name]} for name, score in kept.items()},
        "method_file": plan.method if plan.method_content is not None else None,
        "score_file": files_in(plan.model_dump()).get("score"),
        "about": {"method": plan.method_name, "data": plain_name(plan.data), "seed": plan.seed, **versions},
    }
    tensors = prefixed("encoder", net.encoder.state_dict()) | prefixed("classifier", net.classifier.state_dict())
    for name, score in kept.items():
        tensors |= prefixed(f"scores/{name}", score.state_dict())
    save_checkpoint(path, tensors, meta)


def load_predictor(
    path: str | Path, *, network: nn.Module | str | None = None, method: str | None = None, score: str | None = None
) -> Predictor:
    """The model of a run folder of `osp.train`, or of one model file; see `osp.load`."""
    trust(network, method, score)
    file, run = Path(path), None
    if file.is_dir():
        run = RunFolder(file)
        file = run.model
        if not file.exists() and run.begun():
            raise UserError(f"The run in {run.path} is not finished; continue it with --resume.")
        if not file.exists() and run.recipe.exists():
            raise UserError(f"The run in {run.path} was made with another version of osp.")
    tensors, meta = load_checkpoint(file, links=run is None)
    if missing := [key for key, each in ModelFacts.model_fields.items() if each.is_required() and key not in meta]:
        raise UserError(f"{file} is no trained model (it lacks {missing[0]!r}); continue its run with --resume.")
    try:
        check(meta, ModelFacts)
        _check_named(meta, network, method, score, str(file))
        network = _network_of(meta, network)
        if isinstance(network, str):
            check_size(network, meta, tensors)
        check_finite(tensors)
        return _rebuilt(file, run, tensors, meta, network, _own_scores(meta, method, score))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        raise UserError(f"{file} is damaged or of another version: {error}") from None


LARGEST_SIDE = 4096


class ScoreFacts(BaseModel):
    config: dict[str, Any]
    threshold: Number


class ModelFacts(BaseModel):
    """What the header of a model file must say."""

    network: str
    shape: list[Annotated[int, Field(ge=1, le=LARGEST_SIDE, strict=True)]] = Field(min_length=1, max_length=3)
    class_names: list[str] = Field(min_length=1)
    mean: list[Number]
    std: list[Annotated[Number, Field(gt=0)]]
    layers: list[Annotated[int, Field(ge=1, strict=True)]] = Field(min_length=2)
    score: str
    scores: dict[str, ScoreFacts]
    method_file: str | None = None
    score_file: str | None = None
    about: dict[str, Any]


def check_size(network: str, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a header that names a far larger network than the file has weights for, before that is built."""
    asked, there = size_of(network), sum(tensor.numel() for tensor in tensors.values())
    asked += sum(before * after for before, after in pairwise(meta["layers"]))
    if asked > 2 * there + 10_000:
        raise ValueError(f"its network would have {asked:,} weights, and it holds {there:,}")


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that are infinite or no numbers; scores of a method file may have such ones."""
    ours = ("encoder/", "classifier/", *(f"scores/{name}/" for name in scores.known()))
    for name, tensor in tensors.items():
        if name.startswith(ours) and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} holds a number that is infinite, or none")


def _network_of(meta: Mapping[str, Any], network: nn.Module | str | None) -> nn.Module | str:
    """The network that is given, else the one that the model names, if that is no code of somebody's."""
    if network is not None:
        return network
    if meta["network"] == CUSTOM:
        raise UserError("This model has a network of your own: give the module again (network=...).")
    return str(meta["network"])


def _check_named(
    meta: Mapping[str, Any], network: nn.Module | str | None, method: str | None, score: str | None, path: str
) -> None:
    """Refuse a model that was made with files of code which have not been named again; all of them are told at once."""
    lacking = {"network": str(meta["network"])} if network is None and is_file(meta["network"]) else {}
    if method is None and score is None and meta["score"] not in scores.known():
        word = "score" if meta.get("score_file") else "method"
        lacking[word] = str(meta.get(f"{word}_file"))
    if lacking:
        files = " and ".join(f"the {word} file {file}" for word, file in lacking.items())
        given = ", ".join(f"{word}={file!r}" for word, file in lacking.items())
        codes = " ".join(f"--code {shlex.quote(file)}" for file in lacking.values())
        raise UserError(
            f"This model was made with {files}. If you trust what is in there, give it again: "
            f"osp.load({path!r}, {given}), or osp report with {codes}."
        )


def _rebuilt(
    file: Path,
    run: RunFolder | None,
    tensors: dict[str, Tensor],
    meta: dict[str, Any],
    network: nn.Module | str,
    own: Mapping[str, type[Score]],
) -> Predictor:
    classes = len(meta["class_names"])
    net = build_network(network, tuple(meta["shape"]), classes)
    if meta["layers"][0] != net.feature_dim or meta["layers"][-1] != classes:
        raise ValueError(f"its classifier has the sizes {meta['layers']}")
    if len(meta["layers"]) > 2:
        net.add_module("classifier", linear_layers(meta["layers"]))
    load_state(net.encoder, unprefixed("encoder", tensors), file)
    load_state(net.classifier, unprefixed("classifier", tensors), file)
    kept: dict[str, Score] = {}
    for name, about in meta["scores"].items():
        if name not in own and name not in scores.known():
            continue  # a score of somebody's file that is not the reported one: the model works without that file
        kind = own[name] if name in own else scores.get(name)
        kept[name] = kind(net.feature_dim, classes, **about["config"])
        load_state(kept[name], unprefixed(f"scores/{name}", tensors), file)
        kept[name].eval()
    return Predictor(net, kept, meta, run)


def _own_scores(meta: Mapping[str, Any], method: str | None, score: str | None) -> dict[str, type[Score]]:
    """Scores that files of the user's define; what the model reports must be there, so its file must be given again."""
    from osp.methods.registry import own_scores

    found = {} if method is None else own_scores(method)
    if score is not None:
        found[plain_name(score)] = scores.get(score)
    name = meta["score"]
    own = {each: kind for each, kind in found.items() if each in meta["scores"] and each not in scores.known()}
    if name in own or name in scores.known():
        return own
    word = "score" if meta.get("score_file") else "method"
    raise UserError(f"The {word} file {score or method} defines no OOD score {name!r}.{suggest(name, list(found))}")
