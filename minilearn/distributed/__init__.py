"""One fit on many processes: AccelerateCB, the wrapped model, synchronisation, shards."""
