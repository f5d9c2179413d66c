"""Rows, table, words and picture of a wire, from numbers made up."""

import dataclasses
import math

import pytest

from experiments import (
  exchanges,
  network,
  wire_pictures,
  wire_results,
  wire_worker,
)

PARAMETERS = 1000
COMPUTING = {'fp32_mean': 1e-3, 'vote': 3e-3, 'gathered_vote': 1e-3}


def cell(name, seconds, sent_bytes=1000.0, rate=1.0):
  return wire_worker.Cell(
    name=name,
    leaves=1,
    collectives=['all-gather'],
    compiled_bytes=500.0,
    hops=3.0,
    seconds=seconds,
    sent_bytes=sent_bytes,
    frames=2.0,
    processor_seconds=0.25,
    steps_per_second={'1': [rate], '12': [2 * rate]},
    ceiling={'1': [4.0], '12': [4.0]},
  )


def make(name, seconds, processes=4, link='1mbit', steps=1.0, leaves=1):
  row = wire_results.row(
    link, PARAMETERS, [cell(name, [seconds], rate=steps)] * processes
  )
  return dataclasses.replace(row, leaves=leaves)


def test_a_row_is_what_all_workers_saw():
  row = wire_results.row(
    '1mbit,20ms',
    PARAMETERS,
    [cell('vote', [1.0, 2.0, 9.0]), cell('vote', [2.0, 3.0, 9.0], 2000.0)],
  )
  assert (row.name, row.processes, row.link) == ('vote', 2, '1mbit,20ms')
  assert row.seconds == 2.5
  assert row.transmission == pytest.approx(8 * 500 / 1e6 + 3 * 0.02)
  assert row.compiled_bits == 8 * 500 / PARAMETERS
  assert row.wire_bits == 8 * 1500 / PARAMETERS
  assert row.payload_bits == 8 * (1500 - 2 * 66) / PARAMETERS
  assert (row.steps, row.ceiling) == ({1: 1, 12: 2}, {1: 4, 12: 4})
  assert len(row.raw) == 2


def test_a_table_compares_with_the_mean_of_its_place():
  rows = [
    make('fp32_mean', 0.5),
    make('vote', 0.1),
    make('vote', 0.2, processes=8),
    make('vote', 0.2, link='unlimited', leaves=1000),
  ]
  lines = wire_results.table(rows).splitlines()
  assert lines[3:5] == [
    '4 processes, 1mbit',
    '  float32 mean               0.5000   0.004125.00     1.00    4.000'
    '    6.944    8.000    1.00   25.0%    2.00   50.0%',
  ]
  assert lines[5].split()[4:8] == ['0.1000', '0.004', '25.00', '5.00']
  assert lines[7] == '8 processes, 1mbit'
  assert lines[8].split()[7] == '-'  # no mean to compare with
  assert lines[10] == '4 processes, unlimited, 1000 leaves'
  assert lines[11].split()[4:8] == ['0.2000', '-', '-', '-']


def test_the_model_adds_computing_and_framed_bits():
  bits = 48 * PARAMETERS
  assert wire_results.model_seconds('fp32_mean', 4, 1e6, PARAMETERS, 0.25) == (
    pytest.approx(0.25 + network.FRAMING * bits / 1e6)
  )


def test_break_even_is_where_the_model_says_that_both_take_as_long():
  rate = wire_results.break_even('vote', 4, PARAMETERS, COMPUTING)
  vote, mean = (
    wire_results.model_seconds(name, 4, rate, PARAMETERS, COMPUTING[name])
    for name in ('vote', 'fp32_mean')
  )
  assert vote == pytest.approx(mean)
  for workers, expected in [(4, math.inf), (64, 0), (65, 0)]:
    rate = wire_results.break_even(
      'gathered_vote', workers, PARAMETERS, COMPUTING
    )
    assert rate == expected


def test_says_where_compression_does_not_pay():
  rows = [
    make('fp32_mean', 0.5, steps=1.0),
    make('vote', 0.1, steps=2.0),
    make('gathered_vote', 0.1, steps=1.01),
    make('fp32_mean', 0.1, link='unlimited'),
    make('vote', 0.2, link='unlimited'),
    make('gathered_vote', 0.3, link='unlimited'),
    make('vote', 0.2, processes=8),
  ]
  text = wire_results.verdict(rows, PARAMETERS, COMPUTING)
  assert (
    '4 processes, 1mbit: training with 1 local step is not faster with vote by'
    ' all-gather; training with 12 local steps is not faster with vote by'
    ' all-gather.' in text
  )
  assert (
    '4 processes, unlimited: an exchange is not shorter as vote in two hops,'
    ' vote by all-gather; training with 1 local step is not faster with any of'
    ' these' in text
  )
  assert '8 processes, 1mbit' not in text
  rate = wire_results.break_even('vote', 4, PARAMETERS, COMPUTING)
  assert f'vote in two hops: below {rate / 1e9:.3g} Gbit/s with 4' in text
  assert 'vote by all-gather: on every link with 4 workers' in text
  assert 'more than 64 workers' in text


def test_says_that_it_pays_everywhere():
  rows = [make('fp32_mean', 0.5), make('vote', 0.1, steps=2.0)]
  assert 'nowhere' in wire_results.verdict(rows, PARAMETERS, COMPUTING)


def test_words_alone_are_no_way_to_agree(tmp_path):
  rows = [make('fp32_mean', 0.5), make('vote_words', 1.0)]
  assert 'its words alone' in wire_results.table(rows)
  assert 'nowhere' in wire_results.verdict(rows, PARAMETERS, COMPUTING)
  picture = tmp_path / 'wire.png'
  wire_pictures.draw(rows[1:], PARAMETERS, COMPUTING, picture)
  assert not picture.exists()


@pytest.mark.parametrize(
  'places', [[], [('1mbit', 4)], [('1mbit', 2), ('unlimited', 2), ('1gbit', 8)]]
)
def test_draws_what_there_is(tmp_path, places):
  names = list(exchanges.METHODS)
  rows = [
    make(name, 0.1 * (i + 1), processes, link)
    for link, processes in places
    for i, name in enumerate(names)
  ]
  rows.append(make('vote', 1.0, link='1mbit,20ms', leaves=1000))
  picture = tmp_path / 'wire.png'
  wire_pictures.draw(rows, PARAMETERS, dict.fromkeys(names, 1e-3), picture)
  assert picture.exists() == bool(places)
