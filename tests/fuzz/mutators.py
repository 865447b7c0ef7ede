"""Small damage to values, arrays, files and archives, drawn from a random generator."""

import io
import json
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31 - 1, 2**31, 2**62, 2**63, 2**70, 10**400, 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "\0",
    "a" * 3000,
    "../../x", "s3://b/c", "\ud800", "é", [], {}, [[]], [None], {"a": {"b": [1]}}, "2026-01-01", "1", "inf",
]  # fmt: skip
DTYPES = [
    "int8",
    "int32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "bool",
    "U3",
    "S2",
    "m8[s]",
    "M8[s]",
    "V4",
]
EXTREMES = {
    "i": [-1, 0, 1, 127, 2**31 - 1, -(2**31), 2**62],
    "u": [0, 1, 255, 2**63],
    "f": [np.nan, np.inf, -np.inf, -1.0, 1e30, 1e-30],
}


def odd(rng: random.Random) -> Any:
    """An unusual value."""
    return rng.choice(ODD)


def mutate_record(rng: random.Random, record: Any) -> Any:
    """A JSON value with one unusual value in it, one key less, or one more."""
    record = json.loads(json.dumps(record))
    at, path = record, []
    while isinstance(at, dict | list) and at and (not path or rng.random() < 0.75):
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        path.append((at, key))
        at = at[key]
    if not path:
        return odd(rng)
    holder, key = path[-1]
    kind = rng.random()
    if kind < 0.15:
        del holder[key]
    elif kind < 0.25 and isinstance(holder, dict):
        holder[str(odd(rng))[:50]] = odd(rng)
    elif kind < 0.3:
        deep: Any = 1
        for _ in range(rng.choice([5, 60, 900])):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        holder[key] = deep
    else:
        holder[key] = odd(rng)
    return record


def to_json(rng: random.Random, record: Any) -> bytes:
    """JSON text, sometimes of a kind that parsers choke on."""
    kind = rng.random()
    if kind < 0.03:
        return b"[" * 200_000
    if kind < 0.06:
        return b'{"format": ' + b"9" * 5000 + b"}"
    return json.dumps(record).encode()


def mutate_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """An array with one extreme entry, of another type or of another shape."""
    a, kind = array.copy(), rng.random()
    if kind < 0.5 and a.size and a.dtype.kind in EXTREMES:
        value = rng.choice(EXTREMES[a.dtype.kind])
        info = np.iinfo(a.dtype) if a.dtype.kind in "iu" else None
        a.reshape(-1)[rng.randrange(a.size)] = value if info is None else max(info.min, min(info.max, value))
        return a
    if kind < 0.65:
        try:
            return a.astype(rng.choice(DTYPES))
        except (TypeError, ValueError):
            return a.astype("U8")
    if kind < 0.75:
        return a[: rng.randrange(len(a) + 1)] if a.ndim else a.reshape(1)
    if kind < 0.85:
        return a.reshape(-1) if rng.random() < 0.5 else a[None]
    if kind < 0.9:
        return np.concatenate([a, a]) if a.ndim else a
    if kind < 0.95:
        rng.shuffle(flat := a.reshape(-1).tolist())
        return np.array(flat, a.dtype).reshape(a.shape) if a.size else a
    return a[:0] if a.ndim else a


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes with some flipped, cut off, doubled, zeroed or inserted."""
    data, kind = bytearray(data), rng.random()
    if not data:
        return rng.randbytes(8)
    at = rng.randrange(len(data))
    if kind < 0.5:
        for _ in range(rng.choice([1, 1, 3, 20])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind < 0.65:
        del data[at:]
    elif kind < 0.75:
        data[at:at] = rng.randbytes(rng.choice([1, 8, 200]))
    elif kind < 0.85:
        data[at : at + 16] = bytes(len(data[at : at + 16]))
    elif kind < 0.92:
        data[at : at + 4] = b"\xff" * 4
    else:
        data = bytearray(rng.randbytes(rng.choice([0, 1, 50, 1000])))
    return bytes(data)


def mutate_tree(rng: random.Random, folder: Path) -> None:
    """Damage, remove or double one file of a folder, or replace it by a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    file, kind = rng.choice(files), rng.random()
    if kind < 0.75:
        file.write_bytes(mutate_bytes(rng, file.read_bytes()))
    elif kind < 0.85:
        file.unlink()
    elif kind < 0.92:
        file.write_bytes(rng.choice(files).read_bytes())
    else:
        file.unlink()
        file.mkdir()


def npy(array: np.ndarray) -> bytes:
    """An array in the format of `numpy.save`."""
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def npy_with_header(rng: random.Random) -> bytes:
    """An invalid or exaggerated header."""
    header = rng.choice(
        [
            "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999,), }",
            "{'descr': '<i8', 'fortran_order': False, 'shape': (-5,), }",
            "{'descr': '<i8', 'fortran_order': False, 'shape': (2**70,), }",
            "{'descr': " + "[" * 3000 + "]" * 3000 + ", 'fortran_order': False, 'shape': (3,), }",
            "{'descr': [('a', '<i8', (100000, 100000))], 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '|V0', 'fortran_order': False, 'shape': (10**9,), }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '<i8', 'fortran_order': False, 'shape': (3,",
            "'''",
            "{'a': (" + "-" * 5000 + "1)}",
        ]
    )
    raw = header.encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(raw)) + raw + bytes(24)


def archive(rng: random.Random, members: dict[str, bytes]) -> bytes:
    """A zip file of the members, sometimes one that unpacks to far more, or that claims to be encrypted."""
    out, kind = io.BytesIO(), rng.random()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if kind < 0.3 else zipfile.ZIP_STORED) as z:
        for name, data in members.items():
            z.writestr(f"{name}.npy", data)
        if kind < 0.003:
            bomb = npy(np.zeros(1))[:128].replace(b"(1,)", b"(9,)") + bytes(600 << 20)
            z.writestr(rng.choice(["y.npy", "ignored.npy", "x.npy"]), bomb, zipfile.ZIP_DEFLATED, 9)
    data = bytearray(out.getvalue())
    if 0.3 < kind < 0.35:
        for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            first = data.find(magic)
            data[first + at] |= 1
    return bytes(data)
