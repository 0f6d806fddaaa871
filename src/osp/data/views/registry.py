"""Views by name: one file each in this folder, or an installed package's entry point (group `osp.views`)."""

from __future__ import annotations

import re

from osp.data.views.base import View
from osp.errors import UserError, suggest
from osp.plugins import Plugins, only_class

_views = Plugins(
    "osp.data.views",
    "osp.views",
    "view",
    only_class(View),  # type: ignore[type-abstract]  # the base itself is never taken
    helpers=("augmenter", "base", "image_ops", "registry"),
)


def available() -> list[str]:
    """Names of all views.

    >>> available()
    ['flip', 'plain', 'strong', 'weak']
    """
    return _views.names()


def base_name(view: str) -> str:
    """A view without the number at its end, which only asks for a draw of its own.

    >>> base_name("weak2"), base_name("strong")
    ('weak', 'strong')
    """
    return re.sub("[0-9]+$", "", view)


def find(view: str) -> type[View]:
    """The class of a view; UserError with a near miss where there is none of this name."""
    found = _views.get(base_name(view))
    if found is None:
        raise UserError(f"Unknown view {view!r}.{suggest(base_name(view), available())}")
    return found
