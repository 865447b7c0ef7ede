"""Readers of other libraries' formats. Each yields the tables or arrays of the readers beside this folder."""
