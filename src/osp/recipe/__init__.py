"""What was asked (`Recipe`) and what was decided (`Plan`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osp.recipe.deciding import make_plan
    from osp.recipe.plan import Plan
    from osp.recipe.reading import apply_assignments, explain, parse_assignment, read_fields
    from osp.recipe.recipe import Recipe

__all__ = ["Plan", "Recipe", "apply_assignments", "explain", "make_plan", "parse_assignment", "read_fields"]

_PLACES = {"make_plan": "deciding", "Plan": "plan", "Recipe": "recipe"}


def __getattr__(name: str) -> Any:
    if name in __all__:  # pydantic: the command needs `osp.recipe.fields` alone
        return getattr(import_module(f"osp.recipe.{_PLACES.get(name, 'reading')}"), name)
    raise AttributeError(f"module 'osp.recipe' has no attribute {name!r}")
