"""Runtime of the kernels: threads, intrinsics, device memory and random words on a GPU."""
