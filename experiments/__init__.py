"""The research half of the repository: everything that is not the library.

    config, ranges,
    errors              what to run: a file, its arguments, overrides
    tasks               what is learnt: a model, its loss and its data
    language, vision,
    answers             the tasks that there are
    models, data        what they are made of: each knows nothing of the other
    finetuning          given weights, and questions to the model that comes out
    baselines           what counts as having learnt something
    methods             how: a method's name -> an optax transformation
    executors, rounds   who makes the steps, and what a round of them is
    loop, checkpoints,
    evaluate, traffic,
    losses, metrics,
    progress, report,
    provenance,
    interrupts, faults,
    memory, outputs     the run itself and what is left of it
    settings, outcomes,
    sweep               many runs: which, what is known of them, who makes them
    comparison,
    pictures, sampling  what is made of runs
    network, delay_line several hosts on one machine, and links between them
    exchanges,
    wire_*              what workers exchange, measured on such links
    at_size, chips      programs from shapes, for machines that are not there
    studies, nonconvex,
    bounds, exponents,
    rates               the theory in numbers
    train, compare,
    generate, theory,
    fits, choose, make_token_files,
    bench_*             entry points: flags and one call (entry: what is first)

The arrows point one way: `experiments` imports `signmomentum`, never the
other way round, and nothing here is needed to use the library.
"""
