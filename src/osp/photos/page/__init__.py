"""The page of a run of `osp fit` (`osp report run/`)."""
