"""What was asked (`Recipe`) and what was decided (`Plan`)."""

from osp.recipe.deciding import make_plan
from osp.recipe.plan import Plan
from osp.recipe.reading import apply_assignments, explain, parse_assignment, read_fields
from osp.recipe.recipe import Recipe

__all__ = ["Plan", "Recipe", "apply_assignments", "explain", "make_plan", "parse_assignment", "read_fields"]
