"""Bytes of main memory, of programs whose bytes can be counted by hand."""

import pathlib

import pytest

from experiments import hbm

_HEAD = 'HloModule step, is_scheduled=true\n'


def test_a_fusion_reads_operands_and_writes_results_but_not_the_fast_memory():
  program = (
    _HEAD
    + """
%fused (p: f32[256,128], q: f32[256,128]) -> (f32[256,128], f32[256,128]) {
  %p = f32[256,128]{1,0:T(8,128)} parameter(0)
  %q = f32[256,128]{1,0:T(8,128)S(1)} parameter(1)
  %sum = f32[256,128]{1,0:T(8,128)} add(%p, %q)
  %product = f32[256,128]{1,0:T(8,128)S(1)} multiply(%p, %q)
  ROOT %both = (f32[256,128]{1,0:T(8,128)}, f32[256,128]{1,0:T(8,128)S(1)})
    tuple(%sum, %product)
}

ENTRY %main (x: f32[256,128], y: f32[256,128]) -> f32[256,128] {
  %x = f32[256,128]{1,0:T(8,128)} parameter(0)
  %y = f32[256,128]{1,0:T(8,128)} parameter(1)
  %start = (f32[256,128]{1,0:T(8,128)S(1)}, f32[256,128]{1,0:T(8,128)},
    u32[]{:S(2)}) copy-start(%y)
  %fast = f32[256,128]{1,0:T(8,128)S(1)} copy-done(%start)
  %two = (f32[256,128]{1,0:T(8,128)}, f32[256,128]{1,0:T(8,128)S(1)})
    fusion(%x, %fast), kind=kLoop, calls=%fused
  ROOT %one = f32[256,128]{1,0:T(8,128)} get-tuple-element(%two), index=0
}
"""
  )
  array = 4 * 256 * 128
  # y is fetched; x is read and the sum written; the rest is in fast memory
  assert hbm.bytes_accessed(program) == 3 * array


def test_of_a_slice_only_the_slice_is_read_and_an_update_is_in_place():
  program = (
    _HEAD
    + """
%fused (p: f32[256,128], i: s32[]) -> f32[8,128] {
  %p = f32[256,128]{1,0:T(8,128)} parameter(0)
  %i = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %rows = f32[8,128]{1,0:T(8,128)} dynamic-slice(%p, %i, %zero),
    dynamic_slice_sizes={8,128}
}

%updating (p: f32[256,128], u: f32[8,128], i: s32[]) -> f32[256,128] {
  %p = f32[256,128]{1,0:T(8,128)} parameter(0)
  %u = f32[8,128]{1,0:T(8,128)} parameter(1)
  %i = s32[]{:T(128)S(6)} parameter(2)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %new = f32[256,128]{1,0:T(8,128)} dynamic-update-slice(%p, %u, %i, %zero)
}

ENTRY %main (x: f32[256,128], i: s32[]) -> f32[256,128] {
  %x = f32[256,128]{1,0:T(8,128)} parameter(0)
  %i = s32[]{:T(128)S(6)} parameter(1)
  %rows = f32[8,128]{1,0:T(8,128)} fusion(%x, %i), kind=kLoop, calls=%fused
  ROOT %new = f32[256,128]{1,0:T(8,128)} fusion(%x, %rows, %i),
    kind=kLoop, calls=%updating
}
"""
  )
  rows = 4 * 8 * 128
  assert hbm.bytes_accessed(program) == 4 * rows  # twice read, twice written


def test_a_loop_counts_as_often_as_it_runs():
  program = (
    _HEAD
    + """
%condition (c: (s32[], f32[128])) -> pred[] {
  %c = (s32[]{:T(128)}, f32[128]{0:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%c), index=0
  %n = s32[]{:T(128)} constant(5)
  ROOT %less = pred[]{:T(512)S(6)} compare(%i, %n), direction=LT
}

%body (c: (s32[], f32[128])) -> (s32[], f32[128]) {
  %c = (s32[]{:T(128)}, f32[128]{0:T(128)}) parameter(0)
  %i = s32[]{:T(128)S(6)} get-tuple-element(%c), index=0
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)S(6)} add(%i, %one)
  %x = f32[128]{0:T(128)} get-tuple-element(%c), index=1
  %y = f32[128]{0:T(128)} negate(%x)
  ROOT %new = (s32[]{:T(128)S(6)}, f32[128]{0:T(128)}) tuple(%next, %y)
}

ENTRY %main (x: f32[128]) -> (s32[], f32[128]) {
  %x = f32[128]{0:T(128)} parameter(0)
  %start = s32[]{:T(128)} constant(0)
  %pair = (s32[]{:T(128)}, f32[128]{0:T(128)}) tuple(%start, %x)
  ROOT %loop = (s32[]{:T(128)}, f32[128]{0:T(128)}) while(%pair),
    condition=%condition, body=%body
}
"""
  )
  # the constant 1 is read by each addition
  assert hbm.bytes_accessed(program) == 5 * (2 * 512 + 4)


@pytest.mark.parametrize('name', ['tpu_two_hop', 'tpu_two_slices'])
def test_real_programs(name):
  path = pathlib.Path(__file__).parent / 'testdata' / f'{name}.hlo'
  assert hbm.bytes_accessed(path.read_text()) > 0
