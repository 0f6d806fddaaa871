"""The picture of `osp bench speed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from osp.report.figure import own_style, save_png

COLORS = {"ours": "#2a6f97", "bare": "#9db4c0", "as published": "#d1603d"}


def draw_speed(found: dict[str, Any], path: Path) -> None:
    """Bars for the step in its three forms, and our step by batch, classes and pool."""
    with own_style():
        save_png(draw(found), path)


def draw(found: dict[str, Any]) -> Figure:
    """The figure of `draw_speed`."""
    steps, growth = found["step"], found["growth"]
    panels = len(steps) + len(growth)
    figure = Figure(figsize=(3.2 * panels, 3.2), layout="constrained", dpi=110)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for network, cost in steps.items():
        panel = axes.pop(0)
        for form, seconds in cost["seconds"].items():
            middle = seconds["median"]
            spread = [[middle - seconds["least"]], [seconds["most"] - middle]]
            panel.bar(form, middle, yerr=spread, color=COLORS[form], capsize=3)
        panel.set(title=network, ylabel="seconds per step")
        panel.tick_params(axis="x", labelsize=8)
    for what, values in growth.items():
        panel = axes.pop(0)
        x = [int(value) for value in values]
        panel.plot(x, [seconds["median"] for seconds in values.values()], marker="o", color=COLORS["ours"])
        least, most = ([seconds[key] for seconds in values.values()] for key in ("least", "most"))
        panel.fill_between(x, least, most, alpha=0.2, color=COLORS["ours"])
        panel.set(xscale="log", xlabel=what, ylabel="seconds per step", title=f"ours, by {what}")
        panel.set_xticks(x, [f"{value:,}" for value in x], fontsize=8)
        panel.minorticks_off()
        panel.set_ylim(0, 1.15 * max(most))
        panel.grid(alpha=0.3)
    return figure
