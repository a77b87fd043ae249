"""Image data: find files, labels and splits, then build loaders: `image_dls`."""
