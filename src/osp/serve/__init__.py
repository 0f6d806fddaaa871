"""The server of `osp serve`: a model asked by a page in the browser, or as JSON."""
