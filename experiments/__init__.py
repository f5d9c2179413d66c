"""The research half of the repository: everything that is not the library.

    config, errors      what to run: a file, its arguments, overrides
    text, batches       what a worker sees: corpus -> tokens -> windows
    baselines           what counts as having learnt something
    models              what is trained
    methods             how: a method's name -> an optax transformation
    loop, checkpoints,
    metrics, report     the run itself and what is left of it
    train, compare,
    generate, bench_*   entry points: flags and one call

The arrows point one way: `experiments` imports `signmomentum`, never the
other way round, and nothing here is needed to use the library.
"""
