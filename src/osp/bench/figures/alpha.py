"""Figure (a) of the supplement: accuracy and AUROC over α, the share of the OOD component that OSP prunes."""

from __future__ import annotations

from matplotlib.figure import Figure

from osp.bench.figures._lines import Panel, line_figure, number
from osp.runs.run import Run

TITLE = "Accuracy and AUROC over α, the share of the OOD component that is pruned (the supplement's Figure a)."


def figures(runs: list[Run]) -> dict[str, Figure]:
    panels = [
        Panel(lambda run, key=key: number(run, key, alpha(run)), "α", name)  # type: ignore[misc]
        for key, name in (("accuracy", "test accuracy (%)"), ("auroc", "AUROC (%)"))
    ]
    return line_figure([run for run in runs if alpha(run) is not None], panels)


def alpha(run: Run) -> float | None:
    """Of methods that prune; None for others."""
    value = run.plan.options.get("alpha") if run.method == "osp" else None
    return float(value) if isinstance(value, int | float) else None
