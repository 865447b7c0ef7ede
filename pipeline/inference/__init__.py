"""Models of finished runs: opening, evaluating, and predicting."""
