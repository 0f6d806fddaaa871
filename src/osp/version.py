"""The version, alone in a file so that packaging reads it without importing torch."""

__version__ = "0.1.0"

HARNESS_VERSION = 1
"""Raised when the harness (views, splits, loop, evaluation) gives other numbers than before: results of runs with
another number are stale."""
