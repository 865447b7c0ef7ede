"""Times as numbers, and the moments that users name by numbers or dates."""
