"""Other ways to compute an update: half precision, and optimizers that need a closure."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from ..base.batch import default_device
from ..base.text import differences
from ..core.learner import Loop
from .gradients import GradAccumCB, NonFiniteCB, check_grads_end
from .training import TrainCB, explain_loss

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class MixedPrecision(TrainCB):
    """Compute predictions and loss in half precision where that is safe (`torch.autocast`).

    Weights, gradients and metrics stay in float32. It works beside a TrainCB, on a TrainLearner or
    alone. With "fp16" it makes a `ScaledPrecision`.

    >>> learn.fit(1, cbs=MixedPrecision("bf16"))

    Args:
        dtype: "bf16" or "fp16".
        device: the type of device, such as "cuda"; by default where the model is.
        settings: `n_inp`, `inputs`, `targets` and `sample_weight` of TrainCB.

    Raises:
        ValueError: `dtype` is neither of the two.

    Events: before_batch, after_loss, cleanup_batch, predict, get_loss, backward, step, zero_grad
    Order:  TRAIN
    Reads:  model, batch, loss_func, preds, loss, opt, iter, dls
    Writes: preds, loss, loss_parts
    """

    def __init__(self, dtype: str = "bf16", device: str | None = None, **settings: Any) -> None:
        if dtype == "fp16" and type(self) is MixedPrecision:
            self.__class__ = ScaledPrecision
            self.__init__(dtype, device, **settings)
            return
        super().__init__(**settings)
        if dtype not in DTYPES:
            raise ValueError(f"dtype is 'bf16' or 'fp16', got {dtype!r}")
        if dtype == "fp16" and not isinstance(self, ScaledPrecision):
            raise ValueError("float16 needs a scaled loss: derive from ScaledPrecision")
        self.dtype, self.device, self._half = dtype, device, ExitStack()

    def before_batch(self, learn: Loop) -> None:
        """Switch half precision on."""
        self._half = ExitStack()  # a new one: a run inside this batch has its own
        self._half.enter_context(torch.autocast(self._device_type(learn), DTYPES[self.dtype]))

    def after_loss(self, learn: Loop) -> None:
        """Switch half precision off: backward follows the precision of the forward."""
        self._half.close()

    def cleanup_batch(self, learn: Loop) -> None:
        """Switch half precision off, whatever has happened."""
        self._half.close()

    def _device_type(self, learn: Loop) -> str:
        params = getattr(learn.model, "parameters", tuple)()
        return self.device or next((p.device for p in params), default_device()).type

    def __repr__(self) -> str:
        """Show the precision."""
        return f"MixedPrecision({self.dtype!r})"


class ScaledPrecision(MixedPrecision, NonFiniteCB):
    """Scale the loss up, so that small gradients survive in float16, and the gradients down again.

    An update whose gradients overflow is skipped and does not count; the scale is then halved, and
    doubled after 2000 updates without. Fits keep it. 30 overflows in a row raise.

    >>> learn.fit(1, cbs=ScaledPrecision("fp16"))

    Args:
        dtype: "fp16".
        device: as in `MixedPrecision`.
        scaler: sets the first scale, and how it changes.
        settings: `n_inp`, `inputs`, `targets` and `sample_weight` of TrainCB.

    Attributes:
        scaler: the scaler of the running or the last fit.

    Raises:
        ValueError: the owner of `zero_grad` carries gradients on.

    Events: before_fit, before_batch, after_loss, cleanup_batch, before_step, after_step,
        cleanup_step, cleanup_fit, predict, get_loss, backward, step, zero_grad
    Order:  TRAIN
    Reads:  model, batch, loss_func, preds, loss, opt, epoch, iter, steps_done, dls
    Writes: preds, loss, loss_parts
    Syncs: once an update
    """

    def __init__(
        self,
        dtype: str = "fp16",
        device: str | None = None,
        *,
        scaler: GradScaler | None = None,
        **settings: Any,
    ) -> None:
        MixedPrecision.__init__(self, dtype, device, **settings)
        NonFiniteCB.__init__(self, max_skips=30)
        self.scaler, self._unscaled = scaler or GradScaler("cpu"), False

    def before_fit(self, learn: Loop) -> None:
        """Make a scaler for this fit, with the scale of the last one."""
        super().before_fit(learn)
        self.differences = ()
        check_grads_end(self, learn)
        state = self.scaler.state_dict()
        self.scaler, self._unscaled = GradScaler(self._device_type(learn)), False
        self.scaler.load_state_dict(state)

    def backward(self, learn: Loop) -> None:
        """Compute the gradients of the scaled loss."""
        try:
            self.scaler.scale(learn.loss).backward()
        except (AttributeError, RuntimeError, ValueError) as e:
            explain_loss(e, learn.loss)
            raise

    def before_step(self, learn: Loop) -> None:
        """Scale the gradients down before anyone clips them; skip an update that overflowed."""
        self._unscaled = True
        self.scaler.unscale_(learn.opt)
        # GradScaler.step would read these flags too, but after others have used the gradients
        flags = self.scaler._found_inf_per_device(learn.opt).values()
        if sum(flag.item() for flag in flags):
            self.refuse(learn, "the model or the loss overflows in float16; use 'bf16'")

    def step(self, learn: Loop) -> None:
        """Let the optimizer make a step; no other callback may, while gradients are scaled."""
        learn.opt.step()

    def cleanup_step(self, learn: Loop) -> None:
        """Lower the scale after an overflow, or raise it after many updates without."""
        if self._unscaled:
            self.scaler.update()
        self._unscaled = False

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and its counter."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back the scale, for the running fit or the next one."""
        here = self.scaler.state_dict()
        changing = ("scale", "_growth_tracker")
        settings = {name: here[name] for name in here if name not in changing}
        self.differences = [*self.differences, *differences(state, settings, "scaler {}")]
        self.scaler.load_state_dict(state)


class ClosureCB(TrainCB):
    """Train with an optimizer that needs a closure, such as `torch.optim.LBFGS`.

    The optimizer's first evaluation of a batch is the loop's own, whose loss is reported; the
    others call the actions again, without events.

    >>> learn = Learner(model, dls, F.cross_entropy, 1, ClosureCB(), optim.LBFGS)
    >>> learn.fit(1)

    Args:
        n_inp: as in TrainCB, like the other arguments.

    Raises:
        ValueError: a callback changes gradients or precision; only the first evaluation would see
            it.

    Events: before_fit, predict, get_loss, backward, step, zero_grad
    Order:  TRAIN
    Reads:  cbs, model, batch, loss_func, preds, loss, loss_parts, opt, iter, dls
    Writes: preds, loss, loss_parts
    """

    def before_fit(self, learn: Loop) -> None:
        """Check that every evaluation will be like the first."""
        kinds = (GradAccumCB, NonFiniteCB, MixedPrecision)
        if others := [type(cb).__name__ for cb in learn.cbs if isinstance(cb, kinds)]:
            raise ValueError(
                f"{', '.join(others)} would reach only the first of the evaluations that an update "
                "with ClosureCB makes. Leave it out, or take an optimizer without a closure."
            )

    def step(self, learn: Loop) -> None:
        """Let the optimizer make a step, and evaluate the batch as often as it asks."""
        first = learn.preds, learn.loss, learn.loss_parts
        evaluated = True

        def closure() -> Tensor:
            nonlocal evaluated
            if not evaluated:
                learn.clear_grads()
                learn.predict()
                learn.get_loss()
                learn.backward()
            evaluated = False
            return learn.loss

        learn.opt.step(closure)
        learn.preds, learn.loss, learn.loss_parts = first
