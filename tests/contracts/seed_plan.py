"""The seeds that a run's minibatches have, by its job alone."""

from millrace.pipeline.assembly.data_part import graph_and_seeds
from millrace.pipeline.config.load import Job
from millrace.pipeline.config.records import make_system, with_links
from millrace.pipeline.setup.sampling import Sampling
from millrace.stages.assignment import SeedPlan
from millrace.storage.dataset import Dataset


def seed_plan(job: Job, dataset: Dataset) -> SeedPlan:
    """Plan of the seeds of all ranks' minibatches."""
    sampling = Sampling(job=job, system=with_links(job, make_system(job), dataset), whole=dataset)
    return sampling.sample.plan(graph_and_seeds(dataset))
