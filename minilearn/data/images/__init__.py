"""Image data: find files, labels, corrupt files, data sets, streams; `image_dls` joins them."""
