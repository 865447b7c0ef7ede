"""Facts about the machine: GPUs, compilers, limits of memory and time, the allocator."""
