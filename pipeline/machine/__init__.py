"""Facts about the machine: GPUs, compilers, limits of open files and time, the allocator."""
