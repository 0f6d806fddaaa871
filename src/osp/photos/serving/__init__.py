"""`osp serve`: a page on this machine to try a model on, and the same as JSON."""
