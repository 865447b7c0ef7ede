"""How pytest-xdist gives out files after one of its processes has died.

Its own schedule gives out what the dead process had done too. A file of which nothing is left brings no report, and
xdist gives out more only when a report arrives, so that the run waits for ever. It also runs the test again that killed
the process.
"""

import faulthandler
from typing import Any

from xdist.scheduler import LoadFileScheduling

SILENCE_S = 1800
"""Longest time without the end of any test."""


def end_if_silent() -> None:
    """End pytest, with the stacks of its threads, unless this is called again within `SILENCE_S`."""
    faulthandler.dump_traceback_later(SILENCE_S, exit=True)


class EachTestOnce(LoadFileScheduling):
    """Whole files for each process, and each test once, whether or not its process outlives it."""

    def remove_node(self, node: Any) -> str | None:
        """The test that killed the process, if one was running. Its file's other tests run at the end."""
        left = {file: tests for file, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
        if not left:
            return None
        tests = next(iter(left.values()))
        killer = next(test for test, is_done in tests.items() if not is_done)
        tests[killer] = True
        self.workqueue.update((file, tests) for file, tests in left.items() if not all(tests.values()))
        for other in self.nodes:
            self._reschedule(other)
        return killer

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Note the end of a test."""
        end_if_silent()
        super().mark_test_complete(node, item_index, duration)

    def _reschedule(self, node: Any) -> None:
        # A process begins a test when it knows of the next one, or that there is none. Whoever takes the place of a
        # dead one gets its first files here, once it has collected tests.
        while node in self.registered_collections and not node.shutting_down and self._is_nearly_done(node):
            if not self.workqueue:
                node.shutdown()
                return
            self._assign_work_unit(node)

    def _is_nearly_done(self, node: Any) -> bool:
        return self._pending_of(self.assigned_work[node]) <= 2
