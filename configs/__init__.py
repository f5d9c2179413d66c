"""Configs: each file is the record of an experiment, or of a family of them."""
