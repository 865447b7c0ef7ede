"""Rows that are fetched ahead of the training that reads them, by the unit: minibatches whose rows come together."""
