"""Bulk sampling: a backend for each device, and sparse products that check samplers written as matrices."""
