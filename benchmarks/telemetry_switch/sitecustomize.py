"""Put on the path of a run's processes by `telemetry.py`: pulses are sent only in the epochs that
``$MILLRACE_TELEMETRY`` names."""

import os
import random


def is_on(epoch: int) -> bool:
    """True if telemetry is on in this epoch: ``on``, ``off``, or ``paired``: in one of each two epochs, drawn at
    random."""
    kind = os.environ.get("MILLRACE_TELEMETRY", "on")
    return kind == "on" or (kind == "paired" and epoch % 2 == random.Random(epoch // 2).randrange(2))


def install() -> None:
    """Give every rank of this process a heart that rests."""
    from millrace.pipeline.telemetry import heartbeat
    from millrace.pipeline.telemetry.events import StepDone

    class Resting(heartbeat.Heartbeat):
        on = is_on(0)

        def __call__(self, event):
            super().__call__(event)
            if isinstance(event, StepDone):
                self.on = is_on(event.epoch + (event.step + 1 == event.steps_per_epoch))

        def _beat(self, tell):
            if self.on or self._over.is_set():
                super()._beat(tell)

    heartbeat.Heartbeat = Resting


if "MILLRACE_TELEMETRY" in os.environ:
    install()
