"""The version, alone in a file so that packaging reads it without importing torch; and how this copy was installed."""

from __future__ import annotations

__version__ = "0.2.0"

HARNESS_VERSION = 1
"""Raised when the harness (views, splits, loop, evaluation) gives other numbers: older results are stale."""


def install(extra: str) -> str:
    """The command that adds an extra to this copy, from where it came: a clone, a file, an address or an index.

    An index is named only if this copy came from one: under the same name another could offer a stranger's code.
    """
    import json
    import os
    import shlex
    import shutil
    import sys
    from importlib.metadata import entry_points

    beside = os.path.dirname(shutil.which("pip") or "") == os.path.dirname(sys.executable)
    pip = "pip" if beside else f"{shlex.quote(sys.executable)} -m pip"  # a shell without this environment has another

    named = next(iter(entry_points(group="console_scripts", name="osp")), None)
    if named is None or named.dist is None:  # not installed: run from the source
        return f"{pip} install '.[{extra}]'"
    came = json.loads(named.dist.read_text("direct_url.json") or "{}")
    if not came:
        return f"{pip} install '{named.dist.name}[{extra}]'"
    if "dir_info" not in came:
        return f"{pip} install '{named.dist.name}[{extra}] @ {came['url']}'"
    return f"{pip} install {'-e ' * bool(came['dir_info'].get('editable'))}'{_path(came['url'])}[{extra}]'"


def _path(url: str) -> str:
    """The folder of a file: address; `.` for the one we are in."""
    import os
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    path = url2pathname(urlsplit(url).path)
    return "." if path == os.getcwd() else path
