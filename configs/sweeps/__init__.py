"""Sweeps: each file is a list of studies, for `experiments.compare`."""
