"""What commands share: flags, the table of a job, paths and printing."""
