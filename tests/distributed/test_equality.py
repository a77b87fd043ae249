"""What two processes make is what one makes with the double batch."""

import pytest
import torch

from .fits import FITS
from .launch import as_json, told, torchrun


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Each fit on one process, and on each of two."""
    folder = tmp_path_factory.mktemp("equality")
    torchrun("equality", folder)
    return {name: fit(None) for name, fit in FITS.items()}, told(folder)


@pytest.mark.parametrize("name", FITS)
def test_two_processes_make_what_one_makes_with_the_double_batch(both, name):
    one, (first, second) = both[0][name], (found[name] for found in both[1])
    for key, weight in one["weights"].items():
        torch.testing.assert_close(first["weights"][key], weight, atol=1e-6, rtol=0)
        assert torch.equal(first["weights"][key], second["weights"][key])
    assert as_json([first["history"], first["times"]]) == as_json(
        [second["history"], second["times"]]
    )
    assert len(one["history"]) == len(first["history"])
    for ours, theirs in zip(first["history"], one["history"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert torch.equal(first["noise"], one["noise"])
    assert not torch.equal(second["noise"], one["noise"])
    assert name != "stopped" or len(one["history"]) < 9
    for found in (first, second):
        torch.testing.assert_close(found["preds"], one["preds"], atol=1e-6, rtol=0)
        assert torch.equal(found["targs"], one["targs"])
        assert found["loss"] == pytest.approx(one["loss"], abs=1e-6)
