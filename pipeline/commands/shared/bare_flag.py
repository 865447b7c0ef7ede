"""A flag that may stand without a value."""

from collections.abc import Mapping

import typer
from typer.core import TyperCommand


def with_bare_flag(flag: str, bare: str, others: tuple[str, ...]) -> type[TyperCommand]:
    """The class of a command one of whose flags may stand alone.

    Args:
        flag: such as ``--features``.
        bare: its value if it stands alone.
        others: values that may follow as a word of their own; whatever else does is not the flag's.
    """

    class WithBareFlag(TyperCommand):
        # pyrefly: ignore[bad-override]
        def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
            """Give the flag its value."""
            at = [i for i, word in enumerate(args) if word == flag and [*args, ""][i + 1] not in others]
            return super().parse_args(ctx, [f"{flag}={bare}" if i in at else word for i, word in enumerate(args)])

    return WithBareFlag


CLASSES: Mapping[str, type[TyperCommand]] = {
    "sample": with_bare_flag("--features", "own", ("own", "float32", "float16", "bfloat16", "int8"))
}
"""Classes of the commands that have such a flag, by the command's name."""
