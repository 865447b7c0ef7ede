"""Colour palette shared by dashboard and report: one colour for each stage, and one for each kind of bytes.

The colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart, with a grey and a
brown. They read on white and on black.
"""

STAGES = {
    "forward_backward": "#0072b2",
    "fetch": "#e69f00",
    "exchange": "#56b4e9",
    "queue_wait": "#d55e00",
    "reduce": "#cc79a7",
    "evaluate": "#009e73",
    "partition": "#f0e442",
    "sample": "#8c510a",
    "other": "#bbbbbb",
}
"""Colours of the stages that a rank's clock counts, and of the time outside them."""

STAGE_MEANINGS = {
    "forward_backward": "the model's own arithmetic, and the optimiser",
    "fetch": "gathering feature rows and building neighbourhoods; waiting for rows that other ranks send ahead of time",
    "exchange": "layers waiting for rows of other ranks",
    "queue_wait": "waiting for sampled minibatches",
    "reduce": "adding up gradients over ranks; early ranks wait here for the others",
    "evaluate": "validation and test over full neighbourhoods, and waiting for others in it",
    "partition": "laying out what a rank sees",
    "sample": "drawing minibatches, in threads or tasks beside the ranks",
    "other": "starting, opening data, compiling kernels, checkpoints: what no stage counts",
}

KINDS = {
    "graph": STAGES["partition"],
    "features": STAGES["fetch"],
    "activations": STAGES["exchange"],
    "gradients": STAGES["reduce"],
    "minibatches": STAGES["queue_wait"],
    "control": STAGES["other"],
    "step": STAGES["forward_backward"],
}
"""Colours of bytes by kind, each that of the stage that moves it. ``step`` is the memory of a training step."""

KIND_MEANINGS = {
    "graph": "ids and edges",
    "features": "input rows",
    "activations": "rows between layers, and their gradients",
    "gradients": "of parameters",
    "minibatches": "sampled structure",
    "control": "counts, losses, agreements",
}

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
"""Colours of ranks or runs, in this order; after the last, from the first again with other dashes."""

VARIABLES = {
    **{colour: f"--line-{number}" for number, colour in enumerate(LINES)},
    **{colour: f"--{stage.replace('_', '-')}" for stage, colour in STAGES.items()},
}
"""Names of the colours in the style of pages, which change some of them in the dark."""

INK, FAINT = "#1c2024", "#d3d7db"
"""Colours of text and of grid lines in pictures; pages replace them by their own."""
