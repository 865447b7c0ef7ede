"""The command line: the app, its commands, and exit codes (0 done, 2 wrong input, 3 failed, 130 interrupted)."""

import errno
import io
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..storage.errors import MillraceError
from ..storage.urls import without_secrets
from .cluster.signals import ended_by_signals, was_interrupted
from .commands.check import check
from .commands.convert import convert
from .commands.doctor import doctor
from .commands.evaluate import evaluate
from .commands.export import export
from .commands.init import init
from .commands.inspect import inspect
from .commands.partition import partition
from .commands.plan import plan
from .commands.predict import predict
from .commands.report import report
from .commands.run import run
from .commands.sample import sample
from .commands.shared.bare_flag import CLASSES
from .commands.shared.help import ByTheme, RunHelp, example_of
from .commands.shared.output import flush_all, say
from .commands.sweep import sweep
from .commands.warm import warm
from .config.named_code import UnnamedCodeError

ClickError: type[Exception] = typer.BadParameter.__mro__[2]
"""Base class of typer's errors for a wrong command line. Newer versions of typer bring their own click, older ones
import it; this is the class from whichever is used."""

OUT_OF_MEMORY = 'out of memory ({}); use a smaller model, batch_size or fanout, or features = "mapped"'

app = typer.Typer(
    name="millrace",
    help="Train graph neural networks on graphs that have outgrown one process.",
    cls=ByTheme,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=RunHelp, epilog=example_of("run"))(run)
TRAIN_HELP = "The same as run; give it --samples to skip sampling."
app.command("train", cls=RunHelp, help=TRAIN_HELP, epilog=example_of("train"))(run)
OTHERS = init, sweep, sample, partition, plan, convert, evaluate, predict, export, inspect, check, report, doctor, warm
for command in OTHERS:
    app.command(cls=CLASSES.get(command.__name__), epilog=example_of(command.__name__))(command)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        # The package as a whole, which no layer imports.
        say(f"millrace {sys.modules[__name__.partition('.')[0]].__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())


def main() -> None:
    """Entry point of the ``millrace`` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path with a character that the terminal cannot show must not end a run.
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings(), ended_by_signals():
        warnings.showwarning = lambda message, *_, **__: say(f"note: {message}", err=True)
        code = _run_app()
        flush_all()
        sys.exit(code)


def _run_app() -> int:
    """Run the command that the arguments name. An error becomes a few lines on standard error and an exit code."""
    try:
        Path.cwd()
    except OSError:
        # Libraries would end the process without a word of ours.
        return _failed("the current folder is gone; go to one that is there, such as by `cd ~`", 2)
    try:
        code = _interruptible(partial(app, standalone_mode=False))
    except UnnamedCodeError as e:
        again = shlex.join(["millrace", *sys.argv[1:], "--allow-code", e.name])
        return _failed(f"{e.message} in the command:\n  {again}", e.exit_code)
    except MillraceError as e:
        return _failed(str(e), e.exit_code)
    except ClickError as e:
        return _failed(_usage_error(e), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except MemoryError as e:
        return _failed(OUT_OF_MEMORY.format(e), 3)
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            return _failed("a path is longer than the file system allows; choose a shorter one", 2)
        from ..storage.store.full_disk import is_full, no_space

        if is_full(e):
            return _failed(str(no_space(e.filename or "what is written")), 3)
        return _failed(f"the system refused: {e}; fix that, then give the command again (a run: with --resume)", 3)
    except Exception as e:
        # torch raises a plain RuntimeError when it is out of memory on the CPU.
        if isinstance(e, RuntimeError) and "allocate memory" in str(e):
            return _failed(OUT_OF_MEMORY.format(str(e).splitlines()[0]), 3)
        traceback.print_exc()
        return _failed(f"{type(e).__name__} in the code above: mend it if it is yours, else please report it", 3)
    if code == 130:
        return _failed("interrupted; what was committed stays", 130)
    return code if isinstance(code, int) else 0


def _usage_error(error: Any) -> str:
    """Message for a wrong command line. For a flag of another library, it names Millrace's own."""
    context = getattr(error, "ctx", None)
    text = error.format_message()
    if (option := getattr(error, "option_name", None)) is not None and text.startswith("No such option"):
        from .config.aliases import instead_of_flag

        taken = {str(p.name) for p in context.command.params} if context is not None else set()
        advice = instead_of_flag(option, taken) or ""
        text = advice if "overrides" in taken or ("; give --" in advice and "--set" not in advice) else text
        text = text or error.format_message()
    return f"{text}\nSee: {context.command_path if context is not None else 'millrace'} --help"


def _interruptible(command: Callable[[], Any]) -> Any:
    """Call `command`; an error that follows a signal is turned into an interrupt.

    Code that cannot pass on a KeyboardInterrupt, such as a callback from C, raises another error in its place.
    """
    try:
        return command()
    except Exception as e:
        if was_interrupted() and not isinstance(e, MillraceError):
            raise KeyboardInterrupt from e
        raise


def _failed(text: str, code: int) -> int:
    say(f"millrace: {without_secrets(text)}", err=True)
    return code
