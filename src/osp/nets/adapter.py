"""A residual adapter for stored features of a frozen backbone, which pass through unchanged at the start."""

from __future__ import annotations

from torch import Tensor, nn

from osp.nets.registry import NetworkSpec, Shape


class Adapter(nn.Module):
    """z' = z + W2 relu(W1 z + b1), with a sixteenth as many hidden units as features, and W2 = 0 at the start.

    A classifier fitted to the stored features therefore is this network's own before its first step. W2 learns from
    that step on, W1 from the next. Weight decay draws the adapter back to the stored features, not away from them.
    CLIP-Adapter has a quarter, which takes more than twice the time; the form without the ratio that mixes both is
    Houlsby et al.'s (ICML 2019).
    """

    SHRINK, LEAST = 16, 16

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        (self.feature_dim,) = shape
        hidden = max(self.feature_dim // self.SHRINK, self.LEAST)
        self.down = nn.Linear(self.feature_dim, hidden)
        self.up = nn.Linear(hidden, self.feature_dim, bias=False)
        nn.init.kaiming_normal_(self.down.weight, nonlinearity="relu")
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.weight)

    def forward(self, features: Tensor) -> Tensor:
        change: Tensor = self.up(self.down(features).relu())
        return features + change


NETWORK = NetworkSpec(
    name="adapter",
    build=Adapter,
    summary="residual adapter on stored features of a frozen backbone, the identity at the start",
    origin="after Gao et al., CLIP-Adapter: Better vision-language models with feature adapters, IJCV 2024",
    license="MIT, as osp; no weights",
    takes=1,
)
