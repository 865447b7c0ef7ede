"""Dense layers and dropout under autograd."""
