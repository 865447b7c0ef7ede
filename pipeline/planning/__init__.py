"""Plans: predictions of memory, bytes and time before a run, from short trials."""
