"""Rougher matrix products during a fit, and only then."""

import pytest
import torch

from examples.callbacks.matmul_precision import MatmulPrecisionCB
from minilearn import Learner, TrainCB
from tests.toys import linear, toy_dls


def test_matrix_precision_is_put_back_after_an_error():
    before, seen = torch.get_float32_matmul_precision(), []
    learn = Learner(linear(), toy_dls(), cbs=[TrainCB(), MatmulPrecisionCB("medium")])
    learn.on("after_batch", lambda learn: seen.append(torch.get_float32_matmul_precision()))
    learn.on("after_epoch", lambda learn: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learn.fit(1)
    assert seen == ["medium"] * 2 and torch.get_float32_matmul_precision() == before
    with pytest.raises(ValueError, match="'high'"):
        MatmulPrecisionCB("tf32")
