"""`python -m osp` is the same command as `osp`."""

from osp.cli import main

main()
