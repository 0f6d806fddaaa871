"""What can be asked about an image: models that `osp.train` and `osp.fit` made, predicting files, Grad-CAM, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from osp.errors import UserError, user_path
from osp.models.photo import PhotoModel, load_model
from osp.models.trained import Predictor, load_predictor
from osp.runs.fitted import ARRAYS, FACTS
from osp.runs.folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

    from osp.nets.pretrained import Backbone

__all__ = ["PhotoModel", "Predictor", "load"]


def load(
    path: str | Path,
    *,
    network: nn.Module | str | None = None,
    method: str | None = None,
    score: str | None = None,
    backbone: Backbone | None = None,
) -> Predictor | PhotoModel:
    """The model of a run of `osp.train` or `osp.fit`. Loading never runs code from the folder.

    Parameters
    ----------
    path : the folder of a finished run or fit, or the model.safetensors of a run.
    network : the module that the model was trained with, where that was one of your own (`osp.train(network=...)`),
        or the network file, such as "./tiny.py".
    method : the method file, such as "./mine.py", where the model reports an OOD score that this file defines.
    score : the file of the OOD score that the model reports, such as "./cosine.py".
    backbone : of a fit, the `osp.nets.pretrained.Backbone` that it was made with, where that was one of your own.

    Returns
    -------
    Predictor or PhotoModel : both have `class_names`, `predict`, `predict_proba`, `ood_score`, `features`, `threshold`
        and `predict_files`; see there for examples.

    Raises
    ------
    UserError : there is no model, the run is not finished, the file is damaged or of another version, or it needs
        `network`, `method`, `score` or `backbone`.

    >>> load("runs/none")
    Traceback (most recent call last):
    osp.errors.UserError: The run folder runs/none is not there.
    """
    folder = user_path(path)
    if not folder.exists():
        raise UserError(f"The run folder {folder} is not there.")
    run, around = RunFolder(folder), RunFolder(folder.parent)
    runs_file = around.plan.exists() or (folder.parent / FACTS).exists()
    if folder.is_file() and folder != around.model and runs_file:
        raise UserError(f"{folder} is a file of the run {folder.parent}; name the folder.")
    if folder.is_file() and folder.suffix != ".safetensors":
        raise UserError(f"{folder} is a file; the folder of a run is wanted, such as `osp predict RUN {folder.name}`.")
    if any((folder / name).exists() for name in (FACTS, ARRAYS)):
        if network is not None or method is not None or score is not None:
            raise UserError(f"{folder} holds a fit, which takes neither network nor method nor score.")
        return load_model(folder, backbone)
    if folder.is_dir() and not any(file.exists() for file in (run.plan, run.recipe, run.model)):
        raise UserError(f"{folder} is no run folder: it holds neither a fit ({FACTS}) nor a trained model.")
    return load_predictor(folder, network=network, method=method, score=score)
