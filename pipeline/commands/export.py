"""`millrace export`: write a finished run's model as a program that needs torch alone."""

from pathlib import Path
from typing import Annotated

import typer

from ...storage.optional import when_present
from ...storage.store.paths import expanded
from .shared.flags import MODULE, AllowCodeFlag, Flags, JsonFlag, with_flags
from .shared.output import show


@with_flags({"model": MODULE}, {})
def export(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="The file to write, which ends in .pt2.")],
    *,
    flags: Flags,
    allow_code: AllowCodeFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a run's model as a program of torch.export.

    It runs where torch is and Millrace is not.
    """
    from ..custom.user_module import module_named
    from ..datasets.cleaning.kept import made_of_tables
    from ..inference.files import check_new_path
    from ..inference.finished_run import load
    from ..inference.program import export_program

    own, out, run_folder = when_present(module_named, flags["model"]), expanded(out), expanded(run_folder)
    check_new_path(out)
    run = load(run_folder, model=own)
    program = export_program(run, out)
    takes = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    record: dict[str, object] = {"run": str(run_folder), "model": run.result.model, "task": run.result.task}
    record |= {"class_names": run.result.class_names, "out": str(out), "inputs": takes}
    of_pairs = run.result.task == "link" or run.result.labels_of == "edges"
    gives = "rows of nodes, without the decoder of pairs" if of_pairs else "logits"
    read = run.as_before(None)
    record["rows"] = {k: getattr(read, k) for k in ("normalize_features", "nan_features")} | {"treatment": read.before}
    show(f"{run.result.model} in {out}: program({', '.join(takes)}) -> {gives}{made_of_tables(read)}", record, as_json)
