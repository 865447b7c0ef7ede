"""A model card: the facts of a finished run, for whoever gets its model."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...storage.optional import present_items
from ...storage.stored.data_card import described
from ..setup.open_data import with_keys
from ..telemetry.printable import in_table

CARD = "model_card.md"
FILES = ("model.pt", "learned.npy")
SHOWN_COLUMNS = 50
"""Most columns of features that are listed."""
SHOWN_CLASSES = 50
"""Most classes that are listed."""


def model_card(
    result: Mapping[str, Any], job: Mapping[str, Any], splits: Mapping[str, int], numbers: int, code: Mapping[str, str]
) -> str:
    """Markdown with the facts of a run.

    Args:
        result: the record of ``result.json``.
        job: the resolved configuration, as plain values.
        splits: number of nodes, pairs or labelled edges in each split.
        numbers: size of ``model.pt``: parameters and buffers.
        code: names of the user's own code by kind, such as ``loss``.
    """
    outputs = {"regression": "targets", "link": "columns of a node's row"}.get(result["task"], "classes")
    of_edges = result["labels_of"] == "edges"
    rows = {
        "model": f"{result['model']}{_options(job['model'])}",
        "parameters": f"{numbers:,} numbers in `model.pt`",
        "task": f"{result['task']}, {result['num_classes']} {outputs}{' of edges' if of_edges else ''}",
        "input": f"{result['num_features']} features of a node",
        "dataset": f"{result['dataset']}: {result['num_nodes']:,} nodes, {result['num_edges']:,} edges",
        "splits": ", ".join(f"{name} {count:,}" for name, count in splits.items()),
        "training": f"system {result['system']}, {result['epochs']} epochs",
        "sampler": f"{job['sampler'].get('name', 'none')}{_options(job['sampler'])}",
        "optimiser": f"{job['train']['optimizer']}, learning rate {job['train']['lr']}",
        "seed": str(result["seed"]),
    }
    if of_edges and result["num_pair_features"]:
        rows["input"] += f", {result['num_pair_features']} of a labelled edge"
    if (learned := job["learned"])["width"]:
        place = "beside the features" if learned["beside"] else "in place of features"
        rows["learnt features"] = f"{learned['width']} of each node, {place}, in `learned.npy`"
    if (best := result["best_epoch"]) >= 0:
        rows["training"] += f", of which epoch {best + 1} was the best in validation (best_epoch counts from 0: {best})"
    if "optimizer" in code:
        rows.pop("optimiser")
    if code:
        rows["own code"] = ", ".join(f"{kind}: {name}" for kind, name in code.items())
    found = {"validation accuracy": result["val_accuracy"], "test accuracy": result["test_accuracy"]}
    found |= {f"{split} {name}": n for split in ("val", "test") for name, n in result[f"{split}_metrics"].items()}
    rows |= {name: f"{value:.4f}" for name, value in present_items(found).items()}
    rows["versions"] = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    title = f"# {in_table(result['model'])} on {in_table(result['dataset'])}"
    lines = [title, "", "`mr.load(FOLDER)` opens the model.", "", "| | |", "|---|---|"]
    lines += [*(f"| {name} | {_cell(text)} |" for name, text in rows.items()), ""]
    if result["per_class"] is not None and result["num_classes"] <= SHOWN_CLASSES:
        lines += _classes(result["per_class"], result["class_names"], "edges" if of_edges else "nodes")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """A cell's text, in which names of files keep their backquotes."""
    shown = in_table(text)
    for name in FILES:
        shown = shown.replace(f"\\`{name}\\`", f"`{name}`")
    return shown


def data_section(card: Mapping[str, object] | None, notes: Sequence[str]) -> str:
    """Markdown on the data: how they were read, mended and split, and what columns hold; empty without a card."""
    if card is None:
        return ""
    rows = [f"| {in_table(name)} | {in_table(text)} |" for name, text in described(card, SHOWN_COLUMNS)]
    listed = (f"* {in_table(with_keys(note))}" for note in notes)
    return "\n".join(["", "## Data", "", "| | |", "|---|---|", "\n".join(rows), "", *listed, ""])


def _options(record: Mapping[str, Any]) -> str:
    """The options of a named record, in parentheses."""
    options = ", ".join(f"{k} = {v}" for k, v in record.items() if k != "name")
    return f" ({options})" if options else ""


def _classes(per_class: Mapping[str, Any], names: Any, what: str) -> list[str]:
    """The test split, of `what`, by class."""
    lines = [f"| class | test {what} | precision | recall | F1 |", "|---|---|---|---|---|"]
    for i, (support, *rates) in enumerate(zip(*(per_class[c] for c in ("support", "precision", "recall", "f1")))):
        label = i if names is None else in_table(names[i])
        lines.append(f"| {label} | {support:g} | {' | '.join(f'{rate:.3f}' for rate in rates)} |")
    return [*lines, ""]
