"""A run's report: one HTML file and its pictures, from the run's folder alone."""
