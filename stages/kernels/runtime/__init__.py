"""What kernels run on: threads, intrinsics, random words on a GPU."""
