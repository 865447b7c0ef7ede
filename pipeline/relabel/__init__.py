"""Renumbering of a store's nodes part by part, by tasks of bounded memory."""
