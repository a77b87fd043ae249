"""Fits on all processes whose results must be those of one process; see test_equality."""

import sys

import torch
from distributed.fits import FITS
from distributed.launch import tell

torch.set_num_threads(1)
tell(sys.argv[1], **{name: fit(torch.distributed) for name, fit in FITS.items()})
