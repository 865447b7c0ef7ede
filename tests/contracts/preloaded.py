"""What the fork server of `process_ranks` loads once, so that no rank has to: modules, and what numba sets up at the first call of a
kernel."""

import gc
import importlib

from numba.core.registry import cpu_target

for name in ("one_rank", "clients"):
    importlib.import_module(f"millrace.pipeline.{name}")
for name in ("comm.gloo", "partition.stage", "kernels.cpu"):
    importlib.import_module(f"millrace.stages.{name}")
# The first optimiser imports dynamo, which takes as long as torch itself.
for name in ("pytest", "hypothesis", "torch._dynamo"):
    importlib.import_module(name)
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
# Ranks collect their own garbage only.
gc.freeze()
