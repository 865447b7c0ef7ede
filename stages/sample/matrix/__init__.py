"""Samplers that are written as products of sparse matrices, without a kernel of their own."""
