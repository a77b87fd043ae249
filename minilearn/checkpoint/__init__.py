"""Save a fit, resume it to the bit, and read what a file holds."""
