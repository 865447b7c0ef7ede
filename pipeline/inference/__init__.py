"""Models of finished runs: opening them, evaluating them, and predicting with them."""
