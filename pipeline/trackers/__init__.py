"""Trackers, which tell services such as TensorBoard, MLflow and Weights & Biases of a run: one file each."""
