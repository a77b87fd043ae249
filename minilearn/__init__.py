"""A callback-driven training framework for PyTorch that fits in your head."""
