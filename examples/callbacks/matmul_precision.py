"""Faster, rougher float32 matrix products (TF32, bfloat16) during a fit.

`learn.fit(5, cbs=MatmulPrecisionCB("medium"))`
"""

import torch

from minilearn import Callback, Learner, Order


class MatmulPrecisionCB(Callback):
    """Set the precision of float32 matrix products for a fit, and put it back afterwards.

    Args:
        precision: "highest", "high" or "medium", as in `torch.set_float32_matmul_precision`.

    Events: before_fit, cleanup_fit
    Order:  PLACE
    Reads:
    Writes:
    """

    order = Order.PLACE

    def __init__(self, precision: str = "high") -> None:
        if precision not in ("highest", "high", "medium"):
            raise ValueError(f"precision is 'highest', 'high' or 'medium', got {precision!r}")
        self.precision, self.before = precision, None

    def before_fit(self, learn: Learner) -> None:
        """Note the setting and change it."""
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.precision)

    def cleanup_fit(self, learn: Learner) -> None:
        """Put the setting back."""
        if self.before is not None:
            torch.set_float32_matmul_precision(self.before)
            self.before = None
