"""Before training: a job's data, model and checks; and the folder that records the run and its result."""
