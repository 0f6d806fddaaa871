"""The paper's figures, and one that it lacks, from finished runs: one file each, found by its name.

A file defines `TITLE` and `figures(runs)`, which gives one or more drawings by the ending of their file names ("" for
the only one). `draw("figure-ratio", runs, out)` writes each as PNG and SVG.
"""

from osp.bench.figures._drawing import available, draw, title

__all__ = ["available", "draw", "title"]
