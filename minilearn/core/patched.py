"""What other rooms add to the Learner, declared in one place.

Stands on lazy_method. The methods are written where they live, which is imported when one is first
asked for. A test compares the signatures here, for readers and type checkers, with theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.lazy_method import LazyMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from torch import Tensor

    from minilearn.checkpoint.state import Resume
    from minilearn.inference.infer import Prediction
    from minilearn.inference.predict import Results
    from minilearn.insight.diagnosis import Findings
    from minilearn.insight.lr_curve import LRFound

    from .callback import Callback, Handler
    from .events import Order
    from .history import History
    from .learner import Learner


class Patched:
    """The methods of a Learner that are written elsewhere, by their home."""

    if not TYPE_CHECKING:
        live_state = LazyMethod("callbacks.averaging")
        find_batch_size = LazyMethod("insight.batch_size")
        _resume_cbs = LazyMethod("checkpoint.methods")
        load_checkpoint = LazyMethod("checkpoint.methods")
        save_checkpoint = LazyMethod("checkpoint.methods")
        dry_run = LazyMethod("insight.dry_run")
        on = LazyMethod("callbacks.handlers")
        fit_flat_cos = LazyMethod("optim.recipes")
        fit_one_cycle = LazyMethod("optim.recipes")
        log = LazyMethod("loggers.base")
        timings = LazyMethod("insight.timing")
        _usual_cbs = LazyMethod("metrics.usual")
        export = LazyMethod("inference.export")
        fine_tune = LazyMethod("optim.freeze")
        freeze = LazyMethod("optim.freeze")
        freeze_to = LazyMethod("optim.freeze")
        unfreeze = LazyMethod("optim.freeze")
        infer = LazyMethod("inference.infer")
        tta = LazyMethod("inference.infer")
        capture_preds = LazyMethod("inference.predict")
        get_preds = LazyMethod("inference.predict")
        iter_preds = LazyMethod("inference.predict")
        validate = LazyMethod("inference.predict")
        diagnose = LazyMethod("insight.diagnosis")
        lr_find = LazyMethod("insight.lr_finder")
        show_batch = LazyMethod("insight.show")
        show_image_batch = LazyMethod("insight.show")
        show_results = LazyMethod("insight.show")
        summary = LazyMethod("insight.summary")
        _check_opt = LazyMethod("optim.optimizer")
        _new_opt = LazyMethod("optim.optimizer")
        _set_lr = LazyMethod("optim.optimizer")
        load = LazyMethod("checkpoint.weights")
        save = LazyMethod("checkpoint.weights")
    else:
        # callbacks.averaging
        def live_state(self) -> dict[str, Any]: ...

        # callbacks.batch_size
        def find_batch_size(self, start: int = 32, limit: int = 4096) -> int: ...

        # callbacks.checkpoint_methods
        def _resume_cbs(self, resume: Any, cbs: list[Any]) -> list[Resume]: ...
        def load_checkpoint(self, path: str | Path) -> None: ...
        def save_checkpoint(self, path: str | Path) -> None: ...

        # callbacks.dry_run
        def dry_run(self, cbs: Any = None, lr: float | slice | None = None) -> None: ...

        # callbacks.handlers
        def on(
            self,
            event: str,
            fn: Handler | None = None,
            *,
            every: int = 1,
            once: bool = False,
            when: Callable[[Learner], Any] | None = None,
            order: int = Order.DEFAULT,
        ) -> Any: ...

        # callbacks.recipes
        def fit_flat_cos(
            self,
            n_epochs: int | None = None,
            lr: float | None = None,
            *,
            pct_start: float = 0.75,
            div_final: float = 100000.0,
            cbs: Any = None,
            **kwargs: Any,
        ) -> None: ...
        def fit_one_cycle(
            self,
            n_epochs: int | None = None,
            lr_max: float | slice | Sequence[float] | None = None,
            *,
            pct_start: float = 0.25,
            div: float = 25.0,
            div_final: float = 100000.0,
            cbs: Any = None,
            **kwargs: Any,
        ) -> None: ...

        # callbacks.rows
        def log(self, smooth: bool = True, **values: Any) -> None: ...

        # callbacks.timing
        @property
        def timings(self) -> History: ...

        # callbacks.usual
        def _usual_cbs(self, metrics: Any) -> list[Callback]: ...

        # export
        def export(self, folder: str | Path, *, pt2: bool = False, onnx: bool = False) -> Path: ...

        # freezing
        def fine_tune(
            self,
            n_epochs: int,
            base_lr: float = 0.002,
            freeze_epochs: int = 1,
            *,
            lr_mult: float = 100,
            pct_start: float = 0.3,
            div: float = 5.0,
            **kwargs: Any,
        ) -> None: ...
        def freeze(self, *patterns: str) -> None: ...
        def freeze_to(self, n: int) -> None: ...
        def unfreeze(self, *patterns: str) -> None: ...

        # infer
        def infer(
            self,
            items: Any,
            *,
            act: Callable[[Any], Tensor] | None = None,
            bs: int = 64,
            collate: Callable[[list[Any]], Any] | None = None,
            cbs: Any = None,
        ) -> Prediction | list[Prediction]: ...
        def tta(
            self,
            n: int,
            *tfms: Callable[[Any], Any],
            dl: Any = None,
            act: Callable[[Any], Tensor] | None = None,
            cbs: Any = None,
        ) -> tuple[Any, Any]: ...

        # inference
        def capture_preds(self, cbs: Any = None, inps: bool = False) -> tuple[Any, ...]: ...
        def get_preds(
            self,
            dl: Any = None,
            *,
            act: Callable[[Any], Any] | None = None,
            with_inputs: bool = False,
            with_targs: bool = True,
            with_loss: bool = False,
            decoded: bool | Callable[[Any], Any] = False,
            to: Any = "cpu",
            out: str | Path | None = None,
            cbs: Any = None,
        ) -> Any: ...
        def iter_preds(
            self, dl: Any = None, *, cbs: Any = None, **kwargs: Any
        ) -> Iterator[Any]: ...
        def validate(self, dl: Any = None, cbs: Any = None) -> Results: ...

        # insight.diagnosis
        def diagnose(
            self,
            n: int = 50,
            *,
            near: float = 0.05,
            dead: float = 0.9,
            exploding: float = 1000.0,
            frozen: float = 1e-09,
            cbs: Any = None,
        ) -> Findings: ...

        # insight.lr_finder
        def lr_find(
            self,
            gamma: float = 1.3,
            max_mult: float = 3,
            start_lr: float = 1e-05,
            max_epochs: int | None = None,
            *,
            end_lr: float = 10.0,
            num_it: int | None = None,
            suggest: str | Callable[..., float] | Sequence[Any] = (
                "valley",
                "steep",
                "minimum",
                "slide",
            ),
            plot: bool = True,
        ) -> LRFound: ...

        # insight.show
        def show_batch(self, max_n: int = 9, cbs: Any = None, **kwargs: Any) -> np.ndarray: ...
        def show_image_batch(
            self, max_n: int = 9, cbs: Any = None, **kwargs: Any
        ) -> np.ndarray: ...
        def show_results(
            self, dl: Any = None, max_n: int = 9, cbs: Any = None, **kwargs: Any
        ) -> np.ndarray: ...

        # insight.summary
        def summary(self, cbs: Any = None) -> None: ...

        # optim
        def _check_opt(self) -> None: ...
        def _new_opt(self, lr: float | slice) -> Any: ...
        def _set_lr(self, lr: float | slice) -> None: ...

        # weights
        def load(
            self,
            path: str | Path,
            *,
            strict: bool = True,
            averaged: bool = True,
            trust: bool = False,
        ) -> None: ...
        def save(self, path: str | Path, *, averaged: bool = True) -> None: ...
