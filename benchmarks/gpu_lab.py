"""Shared parts of `gpu.py`: the clock, the graph, the minibatches' seeds, rates of the machine, and the findings."""

import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from graphs import ABC
from peers.train_task import CLASSES, FEATURES
from torch import Tensor

from millrace.stages.kernels.runtime.device_memory import to_device
from millrace.stages.random import Purpose, stream
from millrace.storage.graph import Graph, index_dtype

FLUSH_BYTES = 1 << 30
"""Written before each timed call: its inputs are not in the cache then, and the host is ahead of the device by the time
that takes."""
DIFFERENCE = 1e-3
"""Largest relative difference of losses, in float32."""
SLICE = 1 << 23
"""R-MAT pairs drawn at a time."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    measured: float
    unit: str
    """``s``, ``ms`` and ``us`` are better small, rates are better large."""
    floor: float | None = None
    """The machine's limit, in the same unit; None if it is not known."""
    peer: float | None = None
    """The same by `against`, in the same unit."""
    against: str = ""

    @property
    def _small(self) -> bool:
        return self.unit in ("s", "ms", "us")

    @property
    def share(self) -> float | None:
        """Share of the machine's limit."""
        if self.floor is None or not self.measured:
            return None
        return self.floor / self.measured if self._small else self.measured / self.floor

    @property
    def ratio(self) -> float | None:
        """Speed-up over the peer."""
        if self.peer is None or not self.measured or not self.peer:
            return None
        return self.peer / self.measured if self._small else self.measured / self.peer


@dataclass(eq=False)
class Lab:
    """One device, one graph, and what was found so far."""

    device: torch.device
    num_nodes: int
    """V."""
    num_pairs: int
    """Pairs of the R-MAT graph that are drawn; nearly twice as many edges come of them."""
    batch: int
    """B, seeds of a minibatch."""
    minibatches: int
    """Minibatches of an epoch."""
    deadline: float
    """By `time.monotonic`; what would be measured after it is left out, and told as failed."""
    ranks: int = 2
    """Number of ranks of the part "ranks"."""
    rows: list[Row] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """True on a GPU, and not in Triton's interpreter."""
        return self.device.type == "cuda"

    def say(self, text: str) -> None:
        """One line, now: what comes after may fail."""
        print(text, flush=True)

    def add(self, *row: Any, **more: Any) -> None:
        """Keep a `Row`, and print it."""
        found = Row(*row, **more)
        self.rows.append(found)
        beside = "" if found.share is None else f"; {100 * found.share:.0f} % of {found.floor:.4g}"
        beside += "" if found.ratio is None else f"; {found.ratio:.2f}x {found.against} ({found.peer:.4g})"
        self.say(f"  {found.name}: {found.measured:.4g} {found.unit}{beside}")

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Record and print an error inside the block, and continue after it."""
        try:
            yield
        except Exception as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            text = str(e).strip().splitlines() or [""]
            self.failures[name] = (
                f"{type(e).__name__}: {' / '.join(text[:3])} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"
            )
            self.details.setdefault("tracebacks", {})[name] = traceback.format_exc()
            self.say(f"  FAILED {name}: {self.failures[name]}")
        # Not in the except clause: the traceback would hold on to what took the memory. After a fault of a kernel this
        # fails as well.
        if name in self.failures:
            with suppress(RuntimeError):
                self.clear()

    def check_time(self) -> None:
        """Raises TimeoutError where none is left: by what measures, before it does."""
        if time.monotonic() > self.deadline:
            raise TimeoutError("the time was up before it began")

    def clear(self) -> None:
        """Give back memory that nobody uses."""
        if self.on_gpu:
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """For everything that was launched."""
        if self.on_gpu:
            torch.cuda.synchronize()

    @cached_property
    def _flush(self) -> Tensor:
        return torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)

    def drop(self, *names: str) -> None:
        """Give back what is made anew when it is next asked for, such as `features`."""
        for name in names:
            self.__dict__.pop(name, None)
        self.clear()

    def ms(self, call: Callable[[], Any], *, most: int = 30, limit_s: float = 2.0) -> float:
        """Milliseconds of one call on the device: the median over events, after two calls to warm up, on a flushed
        cache."""
        self.check_time()
        if not self.on_gpu:
            # The interpreter is slow, and its times mean nothing.
            return 1000 * self.seconds(call)
        call()
        self.wait()
        start = time.perf_counter()
        call()
        self.wait()
        count = max(3, min(most, int(limit_s / max(time.perf_counter() - start, 1e-6))))
        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        for begin, end in pairs:
            self._flush.zero_()
            begin.record()
            call()
            end.record()
        self.wait()
        return statistics.median(begin.elapsed_time(end) for begin, end in pairs)

    def warm_up(self, call: Callable[[], Any]) -> None:
        """Call once, untimed; not in the interpreter, where times mean nothing."""
        if self.on_gpu:
            call()

    def seconds(self, call: Callable[[], Any]) -> float:
        """Seconds of one call as the host sees it, until the device is done."""
        self.check_time()
        self.wait()
        start = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - start

    def repeated(self, call: Callable[[], Any], *, most: int = 5, limit_s: float = 3.0) -> list[float]:
        """`seconds` of several calls, as many as fit into the limit, but one at least; the caller has warmed up."""
        found: list[float] = []
        most = most if self.on_gpu else 1
        while len(found) < most and sum(found) < limit_s:
            found.append(self.seconds(call))
        return found

    @cached_property
    def copy_bytes_per_s(self) -> float:
        """Rate of a large copy within the device, bytes read and written."""
        count = (4 << 30) if self.on_gpu else (16 << 20)
        a = torch.randint(0, 255, (count // 8,), device=self.device)
        b = torch.empty_like(a)
        return 2 * count / self.ms(lambda: b.copy_(a)) * 1000

    def generator(self, seed: int) -> torch.Generator:
        """Rate of random numbers on the device."""
        return torch.Generator(self.device).manual_seed(seed)

    @cached_property
    def graph(self) -> Graph:
        """As `graphs.make` defines it, but from torch's random numbers, made on the device in seconds."""
        start = time.perf_counter()
        indptr, indices = (
            x.cpu().numpy() for x in rmat(self.num_nodes, self.num_pairs, self.generator(0), self.device)
        )
        self.clear()
        graph = Graph(indptr, indices)
        degree = graph.in_degree
        quantiles = {f"p{100 * q:g}": int(np.quantile(degree, q, method="nearest")) for q in (0.5, 0.95, 0.99)}
        self.details["graph"] = {
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "max": int(degree.max()),
            **quantiles,
        }
        self.say(f"  graph {self.details['graph']} in {time.perf_counter() - start:.1f} s")
        return graph

    @cached_property
    def features(self) -> Tensor:
        """float32 [V, F] on the device, random."""
        return torch.randn(self.num_nodes, FEATURES, device=self.device, generator=self.generator(1))

    @cached_property
    def labels(self) -> Tensor:
        """int64 [V] on the device, random: nothing is learned here."""
        return torch.randint(0, CLASSES, (self.num_nodes,), device=self.device, generator=self.generator(2))

    @cached_property
    def order(self) -> np.ndarray:
        """int64 [minibatches * B], an epoch's seeds."""
        return np.random.default_rng(0).permutation(self.num_nodes)[: self.minibatches * self.batch]

    def bulks(self, bulk: int, batch: int) -> list["Request"]:
        """An epoch in bulks of so many minibatches of so many seeds, ready to be drawn."""
        return [
            Request.of(self, list(range(first, min(first + bulk, self.minibatches))), batch)
            for first in range(0, self.minibatches, bulk)
        ]


@dataclass(frozen=True, eq=False)
class Request:
    """The seeds and random streams of k minibatches, on the host and on the device."""

    seeds: list[np.ndarray]
    """k times int64 [B]."""
    keys: np.ndarray
    """uint64 [k, L]."""
    flat: Tensor
    """[k B], in the dtype of the graph's ids, on the device."""
    counts: np.ndarray
    """int64 [k]."""
    streams: Tensor
    """int64 [L, k] on the device, the bits of `keys`."""

    @classmethod
    def of(cls, lab: Lab, indices: list[int], batch: int) -> "Request":
        """Minibatches of an epoch, by their positions in it."""
        seeds = [lab.order[i * batch : (i + 1) * batch] for i in indices]
        keys = np.array([[stream(0, Purpose.SAMPLE, 0, i, h) for h in range(3)] for i in indices], np.uint64)
        flat = to_device(np.concatenate(seeds).astype(index_dtype(lab.num_nodes)), lab.device)
        streams = to_device(np.ascontiguousarray(keys.T).view(np.int64), lab.device)
        return cls(seeds, keys, flat, np.array([len(s) for s in seeds], np.int64), streams)


def rmat(num_nodes: int, num_pairs: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """In-neighbour lists of a simple symmetric graph without loops, rows ascending: int64 [V+1], int32 or int64 [E];
    see `graphs`."""
    V, scale = num_nodes, max(1, math.ceil(math.log2(num_nodes)))
    a, ab, abc = (round(65536 * p) for p in np.cumsum(ABC))
    names = torch.randperm(V, generator=generator, device=device)
    found = []
    for low in range(0, num_pairs, SLICE):
        u, v = torch.zeros(2, min(SLICE, num_pairs - low), dtype=torch.int64, device=device)
        for _ in range(scale):
            dart = torch.randint(0, 65536, u.shape, dtype=torch.int32, generator=generator, device=device)
            high = dart >= ab
            u = 2 * u + high
            v = 2 * v + torch.where(high, dart >= abc, dart >= a)
        u, v = names[u * V >> scale], names[v * V >> scale]
        keep = u != v
        found.append((torch.minimum(u, v) * V + torch.maximum(u, v))[keep])
    keys = torch.cat(found).sort().values
    keys = keys[torch.nn.functional.pad(keys.diff() != 0, (1, 0), value=True)]
    both = torch.cat([keys, keys % V * V + keys // V]).sort().values
    dst = both // V
    indptr = torch.nn.functional.pad(torch.bincount(dst, minlength=V).cumsum(0), (1, 0))
    return indptr, (both - dst * V).to(torch.from_numpy(np.empty(0, index_dtype(V))).dtype)
