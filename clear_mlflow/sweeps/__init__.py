"""Sweeps: read a grid, train its runs on this machine or a cluster, and propose the next grids."""
