"""The research half of the repository: everything that is not the library.

    config, errors      what to run: a file, its arguments, overrides
    text, batches       what a worker sees: corpus -> tokens -> windows
    baselines           what counts as having learnt something
    models              what is trained
    methods             how: a method's name -> an optax transformation
    executors, rounds   who makes the steps, and what a round of them is
    loop, checkpoints,
    evaluate, traffic,
    losses, metrics,
    progress, report,
    provenance,
    interrupts, faults  the run itself and what is left of it
    settings, outcomes,
    sweep               many runs: which, what is known of them, who makes them
    comparison,
    pictures, sampling  what is made of runs
    network, delay_line several hosts on one machine, and links between them
    exchanges,
    wire_*              what workers exchange, measured on such links
    studies, nonconvex,
    bounds, exponents,
    rates               the theory in numbers
    train, compare,
    generate, theory,
    bench_*             entry points: flags and one call (entry: what is first)

The arrows point one way: `experiments` imports `signmomentum`, never the
other way round, and nothing here is needed to use the library.
"""
