r"""Measures the rates of both papers on a problem whose constants are known.

    python -m experiments.theory --workdir=runs/theory

takes 70 s of processor time (3 minutes on two cores with much else to do), and
with --quick a few seconds, which shows that it works and nothing else. It
prints a table and leaves theory.md, theory.json and theory.png in the
directory; those of this command are in experiments/results/theory.

The problem is smooth and nonconvex (see ``nonconvex``). Each number of rounds T
has runs of its own, with the step size that makes the bound for that T least
(see ``bounds``). Fits are over 16 repetitions. T starts at 1024: in shorter
runs the slowest points are still on their way for most of the time. (From
T = 256 on, the fits of the four methods after the first are -0.48, -0.50, -0.49
and -0.45.) What the papers say, what is derived, and what to expect:

* Exact sign, local SGD. Paper A: the mean of :math:`E\|\nabla f\|_1` is
  :math:`O(T^{-1/4})`. Its steps and constants are not in our sources; here they
  are derived: :math:`1 - \beta_1 = 1 - \beta_2 = T^{-1/2}` and steps
  :math:`\sim T^{-3/4}`. Measured: -0.243 (-0.244 to -0.241), at most 0.43 of
  the bound. The mean times :math:`T^{1/4}` grows by 2.5 % while T grows
  32-fold; corrections are of relative order :math:`T^{-1/4}`, which is how the
  part of a run falls that points spend on their way.
* Randomized sign, local SGD. Paper A: :math:`O(T^{-1/2})` for one instance.
  Which instance, and of what measure, is not in our sources. Here: no momentum,
  and the squared l2 norm, which is the natural one as the step is a gradient
  step in expectation; steps :math:`\sim T^{-1/2}` and constants are derived.
  Noise is uniform: a randomized sign wants bounded values. Measured: -0.490
  (-0.499 to -0.480) with two points and -0.505 (-0.510 to -0.500) with three,
  at most 0.66 and 0.52 of the bound.
* Distributed Lion in T. Paper B, theorems 3.6 and 3.8: the mean of the
  surrogate S is :math:`O(\frac{1}{T \epsilon} + \frac{1}{T (1 - \beta_2)} +
  \epsilon)` and a term that stays. With :math:`\epsilon \sim T^{-1/2}`, what is
  above the floor should fall as :math:`T^{-1/2}`. Measured: -0.500 (-0.507 to
  -0.492) for the majority vote of 7 and -0.488 (-0.497 to -0.478) for the mean
  of signs; the whole means are at most 0.09 and 0.10 of their bounds.
* Distributed Lion in n. Paper B: the term that stays is :math:`\sim n^{-1/2}`
  for the majority vote, and the same for all n for the mean of signs. Both are
  real here, and not only room in a proof: weight decay pulls away from the
  minimum, and a vote on noise is a weak force against it (``bounds.floor``,
  derived, has the floor to within 7 % of what is measured). Measured: -0.426
  (-0.429 to -0.423) and -0.475 between 31 and 63 voters for the majority, of
  which -1/2 is the limit for many: the computed floors have -0.432 and -0.490.
  For the mean of signs -0.004 (-0.006 to -0.002).

'At least as fast' is a hard question to an exponent: it asks whether chance
alone can explain that the fit is above the bound's, while a bound allows
anything below it, and an exponent is a promise for large T. What a theorem
claims is that the mean is below the bound with all its constants; it is, always
('largest share').

:math:`\beta_1, \beta_2` of Distributed Lion are 0.5 and 0.9. The theorems hold
for any, and with the usual 0.9 and 0.99 their steps are so small that nothing
arrives in runs of this length.
"""

from collections.abc import Sequence
import time

from absl import flags

from experiments import entry, outputs, provenance, rates, studies

_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of the results.', required=True
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of all noise.', lower_bound=0)
_QUICK = flags.DEFINE_bool(
  'quick', False, 'A few short runs, to see that everything works.'
)


def main(argv: Sequence[str]) -> None:
  """Measures, prints and writes."""
  entry.require_flags_only(argv)
  entry.quiet()
  outputs.directory(_WORKDIR.value)
  scale = studies.QUICK if _QUICK.value else studies.FULL
  began = time.perf_counter()
  panels = studies.measure(scale, _SEED.value)
  seconds = time.perf_counter() - began
  facts = studies.facts(scale) | {
    'seed': _SEED.value,
    'seconds': round(seconds, 1),
    'versions': provenance.versions(),
  }
  print(rates.save(panels, facts, _WORKDIR.value), end='')


if __name__ == '__main__':
  entry.run(main)
