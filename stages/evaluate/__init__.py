"""Exact evaluation over full neighbourhoods."""
