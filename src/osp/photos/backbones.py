"""The frozen networks that photographs can be looked at with, by the name that `--backbone` and a saved model give."""

from __future__ import annotations

from collections.abc import Callable

from osp.errors import UserError, suggest
from osp.nets.huggingface import PREFIX, huggingface
from osp.nets.pretrained import Backbone, efficientnet_lite0

BACKBONES: dict[str, Callable[[], Backbone]] = {"lite0": efficientnet_lite0}
SAVED_AS = {"efficientnet-lite0": "lite0"}
"""Names in saved models."""


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
