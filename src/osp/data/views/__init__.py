"""The views of images that methods learn from, one file each, and what applies them to whole batches.

`plain` normalizes only; `flip` mirrors half of the images; `weak` mirrors and crops; `strong` is weak, RandAugment and
a grey square. A digit at the end of a name (`weak2`) asks for another, independent draw.
"""

from osp.data.views.base import Augmenter, Draws, ImageKind, Plan, View, available, content, find, parsed, to_device

__all__ = ["Augmenter", "Draws", "ImageKind", "Plan", "View", "available", "content", "find", "parsed", "to_device"]
