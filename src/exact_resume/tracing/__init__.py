"""What goes into each batch or update of a run, as digests in a file; needs torch, numpy and xxhash alone."""
