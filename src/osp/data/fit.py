"""`fit_images` under the name that the documentation gives; it lives in `osp.data.resize`."""

from osp.data.resize import fit_images as fit_images
