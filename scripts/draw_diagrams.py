"""Draw the diagrams of the docs, as `osp bench figure-method` does.

python scripts/draw_diagrams.py [FOLDER]        (default docs/images)
"""

from __future__ import annotations

import sys
from pathlib import Path

from osp.bench.figures import method
from osp.report.figure import own_style, save_png

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    with own_style():
        for name, drawing in method.figures([]).items():
            save_png(drawing, folder / f"{name}.png")
            print(folder / f"{name}.png")
