"""Facts about the machine: GPUs, compilers, limits and memory allocator."""
