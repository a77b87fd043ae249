"""The progress of a fit in a terminal, a pipe or a notebook: ProgressCB."""
