"""Fetch policies: bring the feature rows that a minibatch or a full batch reads, and the neighbourhoods over them."""
