"""Models: pure functions on plain pytrees of arrays.

Each module offers a frozen config, `init(config, key) -> params`,
`apply(config, params, inputs, dropout_key) -> outputs`, `decay_mask(params)`.
`params` are nested dicts of arrays, so optax, vmap and orbax take them as they
are; how a module computes inside is its own affair.
"""
