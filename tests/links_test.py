"""The model of a link, by hand: bits, hops, and when sending less pays."""

import math

import pytest

from signmomentum import links, wire


def collective(kind, workers=4, sent_bytes=1000.0, times=1):
  return wire.Collective(
    kind, 'c', ('u32',), 4000, workers, sent_bytes, times=times
  )


@pytest.mark.parametrize('rate', [0, -1, math.nan])
def test_a_rate_is_above_zero(rate):
  with pytest.raises(ValueError, match='bits_per_second.*above 0'):
    wire.Link(rate)


@pytest.mark.parametrize('latency', [-1, math.nan, math.inf])
def test_a_latency_is_finite(latency):
  with pytest.raises(ValueError, match='latency_seconds.*from 0'):
    wire.Link(1e6, latency)


@pytest.mark.parametrize(
  'algorithm, reduction, gathering',
  [('ring', 8, 4), ('tree', 6, 3), ('direct', 2, 1)],
)
def test_hops(algorithm, reduction, gathering):
  hops = {
    kind: links.hops(kind, 5, algorithm)
    for kind in (
      'all-reduce',
      'all-gather',
      'reduce-scatter',
      'all-to-all',
      'ragged-all-to-all',
      'collective-permute',
      'collective-broadcast',
    )
  }
  assert hops == dict.fromkeys(hops, 1) | {
    'all-reduce': reduction,
    'all-gather': gathering,
    'reduce-scatter': gathering,
  }


@pytest.mark.parametrize('algorithm', links.ALGORITHMS)
def test_one_worker_has_no_hops(algorithm):
  assert links.hops('all-reduce', 1, algorithm) == 0
  assert links.hops('all-to-all', 1, algorithm) == 0


def test_an_unknown_algorithm_is_refused():
  link = wire.Link(1e6)
  with pytest.raises(ValueError, match=r"'star'.*ring, tree, direct"):
    wire.exchange_seconds([collective('all-reduce')], link, 'star')


def test_an_exchange_is_bits_and_hops():
  vote = [collective('all-to-all'), collective('all-gather', times=2)]
  link = wire.Link(8000, latency_seconds=0.25)
  # 1 s and 1 hop; twice 1 s and 3 hops
  assert wire.exchange_seconds(vote, link) == 1.25 + 2 * 1.75
  assert wire.exchange_seconds(vote, link, 'direct') == 1.25 + 2 * 1.25


def test_an_unlimited_link_takes_the_hops_alone():
  link = wire.Link(math.inf, latency_seconds=0.25)
  assert wire.exchange_seconds([collective('all-reduce')], link) == 6 * 0.25


def test_what_sends_nothing_takes_no_time():
  link = wire.Link(8000, latency_seconds=0.25)
  alone = collective('all-reduce', workers=1, sent_bytes=0.0, times=None)
  assert wire.exchange_seconds([alone], link) == 0


def test_an_exchange_of_a_program():
  text = """HloModule m, num_partitions=4

ENTRY %main (p: f32[1000]) -> f32[1000] {
  %p = f32[1000]{0} parameter(0)
  ROOT %r = f32[1000]{0} all-reduce(%p), channel_id=1,
    replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add
}
"""
  link = wire.Link(1000, latency_seconds=0.25)
  assert wire.exchange_seconds(text, link) == 48 + 6 * 0.25


def test_a_loop_of_unknown_length_is_refused():
  with pytest.raises(ValueError, match='Compile one step'):
    wire.exchange_seconds(
      [collective('all-reduce', times=None)], wire.Link(1e6)
    )


@pytest.mark.parametrize(
  'bits, overhead, baseline_bits, baseline_overhead, rate',
  [
    (10, 3, 110, 1, 50),  # saves 100 bits for 2 seconds
    (10, 3, 110, 3, math.inf),  # ... for nothing
    (10, 1, 110, 3, math.inf),
    (110, 3, 110, 1, 0),  # saves nothing
    (120, 3, 110, 1, 0),
    (120, 3, 110, 3, 0),
    (110, 1, 110, 3, math.inf),  # the same bits, sooner
    (110, 3, 110, 3, 0),  # the same
  ],
)
def test_break_even(bits, overhead, baseline_bits, baseline_overhead, rate):
  assert (
    wire.break_even(bits, overhead, baseline_bits, baseline_overhead) == rate
  )


def test_below_the_break_even_the_method_is_faster():
  def seconds(bits, overhead, rate):
    return overhead + bits / rate

  method, mean = (2e6, 0.02), (64e6, 0.001)
  rate = wire.break_even(*method, *mean)
  assert seconds(*method, 0.99 * rate) < seconds(*mean, 0.99 * rate)
  assert seconds(*method, 1.01 * rate) > seconds(*mean, 1.01 * rate)


def test_a_method_that_is_faster_above_a_rate_is_refused():
  with pytest.raises(ValueError, match='above a rate'):
    wire.break_even(120, 1, 110, 3)


@pytest.mark.parametrize('bad', [-1, math.inf, math.nan])
@pytest.mark.parametrize('place', range(4))
def test_strange_numbers_are_refused(bad, place):
  given = [1, 1, 1, 1]
  given[place] = bad
  with pytest.raises(ValueError, match='finite numbers'):
    wire.break_even(*given)
