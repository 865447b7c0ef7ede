"""Which system a plan recommends, by seconds and steps counted by hand."""

import pytest

from millrace.pipeline.planning.choice import choice, whole_seconds
from millrace.pipeline.planning.forecast import Forecast


def forecast(
    label: str, seconds: float, steps: int, *, epochs: int = 10, memory: int = 100, network: int = 0, fits: bool = True
) -> Forecast:
    sent = {"network": {"gradients": network}}
    system = label.partition(",")[0]
    return Forecast(
        label,
        system,
        fits,
        memory,
        {},
        "of 50 MB",
        sent,
        sent,
        epochs,
        steps,
        seconds if fits else None,
        0.0,
        0.0,
        False,
    )


BULK = forecast("bulk", 2.0, 8, network=900)
GRAPPA = forecast("grappa", 1.0, 8, network=500)
SAR = forecast("sar", 0.5, 1, memory=90, network=800)
RETEXO = forecast("retexo", 0.1, 1, epochs=30, memory=95, network=10)
ALL = [SAR, RETEXO, BULK, GRAPPA]


def test_an_epoch_of_one_layer_is_a_third_of_a_pass():
    assert whole_seconds(RETEXO, 10) == pytest.approx(0.3)


def test_few_steps_of_full_batches_are_not_compared_with_minibatches():
    label, why, goals = choice(ALL, 10, linked=False)
    assert label == "bulk" and "10 passes over all labels" in why and "20 s, 80 optimiser steps" in why
    assert why.endswith("(sar: only 10 steps; retexo and grappa: for slow links)")
    assert goals == {
        "shortest pass over all labels": "retexo",
        "least memory": "sar",
        "fewest bytes between ranks": "retexo",
    }
    assert choice(ALL, 10, linked=True)[0] == "grappa"
    assert choice([SAR, RETEXO], 10, linked=True)[0] == "retexo"


def test_by_passes_a_full_batch_wins_where_the_run_asks_for_many():
    many = [forecast("bulk", 2.0, 8, epochs=200), forecast("sar", 0.5, 1, epochs=200)]
    label, why, _ = choice(many, 200, linked=False)
    assert label == "sar" and "100 s, 200 optimiser steps" in why and "only" not in why
    # Three passes are three steps for all: minibatches of all labels are no more than full batches.
    few = [forecast("bulk", 2.0, 1, epochs=3), forecast("sar", 0.5, 1, epochs=3)]
    assert choice(few, 3, linked=False)[0] == "sar"


def test_on_one_machine_what_saves_messages_is_chosen_only_where_nothing_else_fits():
    assert choice([SAR, RETEXO], 10, linked=False)[0] == "sar"
    no = [forecast("sar", 0.5, 1, fits=False), forecast("bulk", 2.0, 8, fits=False, memory=80)]
    label, why, _ = choice([*no, RETEXO], 10, linked=False)
    assert label == "retexo" and "slow links" not in why
    assert choice(no, 10, linked=False) == (None, "nothing fits: bulk takes least, of 50 MB", {})


def test_one_rank_has_no_bytes_to_save():
    assert (
        "fewest bytes between ranks"
        not in choice([forecast("bulk", 1.0, 4), forecast("sar", 1.0, 1)], 10, linked=False)[2]
    )
