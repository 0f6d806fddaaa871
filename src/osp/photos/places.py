"""Where a model of a run looks in a photograph (Grad-CAM), whatever made the run."""

from __future__ import annotations

import numpy as np
import torch

from osp.photos.graph import InstantNet
from osp.photos.model import PhotoModel
from osp.report.gradcam import ClassMaps, weighed


def photo_maps(model: PhotoModel, images: np.ndarray) -> ClassMaps:
    """What speaks for the class that a photo model predicts: y is its logit, its neighbours in the pile held fixed.

    Images are uint8 N×3×size×size of the backbone's size.
    """
    features, places = model.backbone.features_with_places(torch.from_numpy(images))
    with torch.enable_grad():
        logits, _ = InstantNet(model.instant).to(features.device)(features)
        predicted = logits.argmax(dim=1)
        (gradient,) = torch.autograd.grad(logits[torch.arange(len(images)), predicted].sum(), places)
    seen = weighed(places, gradient, model.backbone.size)
    found = features.detach().cpu().numpy()
    chances = model.instant.predict_proba(found)
    return ClassMaps(seen, chances.argmax(axis=1), chances.max(axis=1), found)
