"""Results of Dask tasks."""

from types import SimpleNamespace

from distributed import Client, LocalCluster

from millrace.pipeline.cluster import futures


def test_tasks_are_waited_for_in_the_loop_of_their_own_client(monkeypatch):
    """The caller's client is the one that Dask takes by default."""
    loops, as_completed = [], futures.as_completed
    monkeypatch.setattr(
        futures, "as_completed", lambda tasks, loop: loops.append(loop) or as_completed(tasks, loop=loop)
    )
    watch = SimpleNamespace(poll=lambda: None)
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster.scheduler_address) as ours,
        Client(cluster.scheduler_address) as callers,
    ):
        tasks = [ours.submit(pow, 2, k) for k in range(3)]
        assert sorted(future.result() for future in futures.completed(watch, tasks)) == [1, 2, 4]
        assert loops == [ours.loop] and ours.loop is not callers.loop
