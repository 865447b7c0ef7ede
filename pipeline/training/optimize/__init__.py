"""What follows a step's gradient: learning-rate schedules, the optimiser step, and the average of parameters."""
