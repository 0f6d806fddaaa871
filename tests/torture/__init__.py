"""Harnesses that try to break osp: `make torture` runs them for long, `tests/test_torture.py` for seconds."""
