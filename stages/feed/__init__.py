"""Sample policies and their feeds: from samples to the pieces of work that a rank trains on."""
