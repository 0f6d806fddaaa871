"""Figures and pages from finished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osp.report.page import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":  # matplotlib and Jinja2: only once there is something to write
        from osp.report.page import write_report

        return write_report
    raise AttributeError(f"module 'osp.report' has no attribute {name!r}")
