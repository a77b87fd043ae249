"""Records of a run: files, trackers, text, hyper-parameters."""
