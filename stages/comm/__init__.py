"""Groups of ranks: collectives and point-to-point messages over gloo and NCCL, metered and watched."""
