"""Pickling of a user's modules for the ranks: by value if ranks cannot import them, and with their file names."""

import base64
import io
import types
from collections import ChainMap
from pathlib import Path
from typing import Any, ClassVar


def pickled(module: object) -> str:
    """A user's module, or objects that hold code of the user's, in base64, for `unpickled`.

    Relative paths in it become absolute, since a worker may have another working directory. Since 3.1.3, cloudpickle
    leaves the file name out of code that travels by value. It is put back, so that an error in a rank names the file
    and line of the user's code.
    """
    import cloudpickle

    dispatch: Any = cloudpickle.Pickler.dispatch_table
    reduce_code: Any = dispatch[types.CodeType]

    def reduce_with_file(code: types.CodeType) -> tuple[object, ...]:
        build, arguments, *rest = reduce_code(code)
        return (build, tuple(code.co_filename if a == "<dynamic-code>" else a for a in arguments), *rest)

    class Pickler(cloudpickle.Pickler):
        # pyrefly: ignore[bad-override]
        dispatch_table: ClassVar[Any] = ChainMap({types.CodeType: reduce_with_file, type(Path()): _absolute}, dispatch)

    file = io.BytesIO()
    Pickler(file).dump(module)
    return base64.b64encode(file.getvalue()).decode()


def _absolute(path: Path) -> tuple[object, ...]:
    return Path, (str(path.absolute()),)


def unpickled(text: str | None) -> Any:
    """The object passed to `pickled`; None for None.

    Unpickling runs code: use it only for text from this run's own driver, never for a file.
    """
    if text is None:
        return None
    import cloudpickle

    return cloudpickle.loads(base64.b64decode(text))
