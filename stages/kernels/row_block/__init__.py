"""Compiled sampling kernels for one block of rows, as ranks that share a graph call them.

An owner has the in-edges of rows [first, first + N) with global sources; what it draws are the bits that
`sampling.cpu` draws in the whole graph. Where those mark nodes in bitmaps and tables over all V nodes, these have a
hash table over the nodes of one minibatch: no array has V entries.
"""
