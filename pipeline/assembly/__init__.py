"""Parts of a job: frozen records with handles on data, of which each process takes those that it needs."""
