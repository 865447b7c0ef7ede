"""Digests of minibatches."""

from typing import Any

import numpy as np

from millrace.storage.fingerprint import array_digest, digest_record
from millrace.storage.minibatch import Block, MiniBatch


def minibatch_digest(minibatch: MiniBatch) -> str:
    """Digest of a minibatch's structure: all arrays of all blocks. Epoch, index and the width of ids do not matter."""

    def block(b: Block) -> dict[str, Any]:
        return {
            "num_dst": b.num_dst,
            "src": array_digest(b.src, np.int64),
            "indptr": array_digest(b.indptr, np.int64),
            "indices": array_digest(b.indices, np.int64),
            "weight": None if b.weight is None else array_digest(b.weight),
            "edge_id": None if b.edge_id is None else array_digest(b.edge_id, np.int64),
        }

    return digest_record({"blocks": [block(b) for b in minibatch.blocks]})
