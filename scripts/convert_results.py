"""One-off: results/ of folders into lines."""
import json, sys
from pathlib import Path
from osp.bench.store import Store
from osp.bench.export import export, line_of
from osp.runs.lines import add_lines
src, out = Store(Path(sys.argv[1])), Path(sys.argv[2])
to = Store(out)
runs = sorted(src.runs(), key=lambda r: r.name)
print(len(runs), "runs")
print(export(runs, to), "new")
