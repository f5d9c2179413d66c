"""Models: pure functions on plain pytrees of arrays.

A model's module offers a frozen config, `init(config, key) -> params`,
`apply(config, params, inputs, dropout_key) -> outputs`, `decay_mask(params)`.
`params` are nested dicts of arrays, so optax, vmap and orbax take them as they
are; how a module computes inside is its own affair. `stack` and `unstack`
convert `params` between the layouts of `scan_layers`. `blocks` and `stacks` are
what models are made of; `gpt2`, `gpt2pp` and `llama` are sizes of `decoder`.
"""
