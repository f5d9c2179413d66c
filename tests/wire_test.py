"""The bytes read from compiled programs equal the formulas."""

import pathlib

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from signmomentum import wire

TESTDATA = pathlib.Path(__file__).parent / 'testdata'
SHIFT = [(i, (i + 1) % 8) for i in range(8)]


def compile_mapped(fn, mesh, shape, dtype=jnp.float32):
  """Compiles `fn`, which sees `shape` on each device of the mesh."""
  spec = jax.P(mesh.axis_names)
  argument = jax.ShapeDtypeStruct(
    (mesh.size * shape[0], *shape[1:]),
    dtype,
    sharding=jax.NamedSharding(mesh, spec),
  )
  mapped = jax.shard_map(
    fn, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
  )
  return jax.jit(mapped).lower(argument).compile()


def workers_mesh():
  return jax.make_mesh((8,), ('workers',))


def golden(name):
  return (TESTDATA / name).read_text()


def module(instructions, header='num_partitions=8', computations=''):
  """The text of a program whose entry has the parameter %p of f32[16]."""
  return (
    f'HloModule m, {header}\n\n{computations}\n'
    'ENTRY %main (p: f32[16]) -> f32[16] {\n'
    f'  %p = f32[16]{{0}} parameter(0)\n{instructions}\n}}\n'
  )


def only(text):
  (collective,) = wire.collectives(text)
  return collective


# The compiled programs of this machine.


@pytest.mark.parametrize(
  'kind, fn, buffer, sent',
  [
    ('all-reduce', lambda x: lax.psum(x, 'workers'), 512, 2 * 512 * 7 / 8),
    (
      'all-gather',
      lambda x: lax.all_gather(x, 'workers', tiled=True),
      8 * 512,
      7 * 512,
    ),
    (
      'reduce-scatter',
      lambda x: lax.psum_scatter(x, 'workers', tiled=True),
      512,
      512 * 7 / 8,
    ),
    (
      'all-to-all',
      lambda x: lax.all_to_all(x, 'workers', 0, 0, tiled=True),
      512,
      512 * 7 / 8,
    ),
    (
      'collective-permute',
      lambda x: lax.ppermute(x, 'workers', SHIFT),
      512,
      512,
    ),
  ],
)
def test_each_kind_as_compiled(kind, fn, buffer, sent):
  collective = only(compile_mapped(fn, workers_mesh(), (8, 16)))
  assert collective.kind == kind
  assert collective.dtypes == ('f32',)
  assert collective.bytes == buffer
  assert collective.group_size == 8
  assert collective.sent_bytes == sent
  assert collective.times == 1
  assert not collective.conditional
  assert 'shard_map' in collective.op_name


@pytest.mark.parametrize(
  'dtype, name, size',
  [
    (jnp.uint32, 'u32', 4),
    (jnp.uint8, 'u8', 1),
    (jnp.int16, 's16', 2),
    (jnp.bool_, 'pred', 1),
    (jnp.bfloat16, 'bf16', 2),
    (jnp.float8_e4m3fn, 'f8e4m3fn', 1),
    (jnp.complex64, 'c64', 8),
  ],
)
def test_element_types_as_compiled(dtype, name, size):
  gather = only(
    compile_mapped(
      lambda x: lax.all_gather(x, 'workers'), workers_mesh(), (4,), dtype
    )
  )
  # A backend may send another type; the bytes are those of the type it sends.
  widened = {'bf16': ('u16', 'f32'), 'f8e4m3fn': ('u8', 'f16')}
  assert gather.dtypes[0] in (name, *widened.get(name, ()))
  factor = {'f32': 2, 'f16': 2}.get(gather.dtypes[0], 1)
  assert gather.sent_bytes == 7 * 4 * size * factor


def test_text_and_compiled_agree():
  compiled = compile_mapped(
    lambda x: lax.psum(x, 'workers'), workers_mesh(), (8, 16)
  )
  assert wire.collectives(compiled) == wire.collectives(compiled.as_text())


@pytest.mark.parametrize(
  'axes, group', [('a', 2), ('b', 4), (('a', 'b'), 8)], ids=str
)
def test_groups_of_a_mesh_with_two_axes(axes, group):
  mesh = jax.make_mesh((2, 4), ('a', 'b'))
  collective = only(compile_mapped(lambda x: lax.psum(x, axes), mesh, (8,)))
  assert collective.group_size == group
  assert collective.sent_bytes == 2 * 32 * (group - 1) / group


def test_groups_of_one_send_nothing():
  one = module(
    '  ROOT %r = f32[16]{0} all-reduce(%p), replica_groups={{0},{1}}, '
    'channel_id=1, use_global_device_ids=true, to_apply=%add'
  )
  assert only(one).group_size == 1
  assert only(one).sent_bytes == 0


def test_collective_in_scan_counts_its_length():
  def fn(x):
    return lax.scan(lambda c, _: (lax.psum(c, 'workers'), None), x, length=12)[
      0
    ]

  collective = only(compile_mapped(fn, workers_mesh(), (8,)))
  assert collective.times == 12
  assert collective.sent_bytes == 2 * 32 * 7 / 8


def test_nested_scans_multiply():
  def inner(x, _):
    return lax.scan(
      lambda c, _: (0.5 * lax.psum(c, 'workers'), None), x, length=3
    )[0], None

  def fn(x):
    return lax.psum(lax.scan(inner, x, length=4)[0], 'workers')

  found = wire.collectives(compile_mapped(fn, workers_mesh(), (8,)))
  assert sorted(c.times for c in found) == [1, 12]


def test_unknown_trip_count_is_none_and_refused_in_the_sum():
  def fn(x):
    return lax.while_loop(
      lambda c: c.sum() < 9, lambda c: lax.psum(c, 'workers'), x
    )

  compiled = compile_mapped(fn, workers_mesh(), (8,))
  assert only(compiled).times is None
  with pytest.raises(ValueError, match=r'Compile one step'):
    wire.sent_bits_per_parameter(compiled, jnp.zeros(8))


def test_collective_in_the_condition_of_a_loop():
  def fn(x):
    return lax.while_loop(
      lambda c: lax.psum(c.sum(), 'workers') < 9, lambda c: c + 1, x
    )

  assert only(compile_mapped(fn, workers_mesh(), (8,))).times is None


def test_conditional_is_marked_and_counted_as_taken():
  def fn(x):
    return lax.cond(
      x.sum() > 0, lambda x: lax.psum(x, 'workers'), lambda x: x, x
    )

  compiled = compile_mapped(fn, workers_mesh(), (8,))
  assert only(compiled).conditional
  bits = wire.sent_bits_per_parameter(compiled, jnp.zeros(8))
  assert bits == 64 * 7 / 8


@pytest.mark.parametrize('fn', [lambda x: x * 2, jnp.sum], ids=['map', 'sum'])
def test_no_collectives(fn):
  compiled = jax.jit(fn).lower(jnp.zeros((4, 4))).compile()
  assert wire.collectives(compiled) == ()


def test_vmap_has_none():
  fn = jax.vmap(lambda x: lax.psum(x, 'workers'), axis_name='workers')
  compiled = jax.jit(fn).lower(jnp.zeros((8, 4))).compile()
  assert wire.collectives(compiled) == ()


def test_two_hops_of_one_bit():
  """2 (n-1)/n bits per parameter for words of 32 signs each."""

  def fn(words):
    pieces = lax.all_to_all(words, 'workers', 0, 0, tiled=True)
    mine = lax.reduce_xor(pieces.reshape(8, -1), axes=(0,))
    return lax.all_gather(mine, 'workers', tiled=True)

  compiled = compile_mapped(fn, workers_mesh(), (64,), jnp.uint32)
  kinds = [c.kind for c in wire.collectives(compiled)]
  assert kinds == ['all-to-all', 'all-gather']
  params = {
    'w': jax.ShapeDtypeStruct((32, 32), jnp.bfloat16),
    'b': np.zeros(1024, np.float32),
    'count': jnp.zeros((7,), jnp.int32),
    'key': jax.random.key(0),
    'none': None,
  }
  assert wire.sent_bits_per_parameter(compiled, params) == 2 * 7 / 8


# Texts of other machines.


def test_gpu_start_and_done_count_once():
  found = wire.collectives(golden('gpu_async.hlo'))
  rows = [
    (c.kind, c.dtypes, c.bytes, c.group_size, c.sent_bytes, c.times)
    for c in found
  ]
  assert rows == [
    ('all-gather', ('u32',), 128, 4, 96, 1),
    ('reduce-scatter', ('f32',), 4096, 4, 3072, 1),
    ('all-gather', ('f32', 'bf16'), 18432, 4, 13824, 1),
    ('all-to-all', ('bf16',), 512, 2, 256, 1),
    ('collective-permute', ('bf16',), 512, 2, 512, 1),
    ('all-reduce', ('f32',), 4096, 2, 4096, 12),
  ]
  assert found[1].op_name == 'jit(step)/psum_scatter'


def test_gpu_pairs_in_a_branch_and_in_a_loop_within_it():
  """What is awaited by a done without `calls` has been started once."""
  found = wire.collectives(golden('gpu_conditional.hlo'))
  assert all(c.conditional for c in found)
  rows = [
    (c.kind, c.dtypes, c.bytes, c.group_size, c.sent_bytes, c.times)
    for c in found
  ]
  assert rows == [
    ('all-reduce', ('f32',), 384, 4, 2 * 384 * 3 / 4, 1),
    ('all-to-all', ('u32',), 128, 4, 96, 1),
    ('collective-permute', ('f32',), 256, 4, 256, 3),
  ]


def test_tpu_hops_in_a_branch():
  found = wire.collectives(golden('tpu_conditional.hlo'))
  words = 4 * 16 * 128
  assert [(c.kind, c.bytes, c.times, c.conditional) for c in found] == [
    ('all-to-all', words, 1, True),
    ('all-gather', words, 1, True),
  ]


def test_tpu_two_hops():
  found = wire.collectives(golden('tpu_two_hop.hlo'))
  assert [(c.kind, c.dtypes, c.group_size) for c in found] == [
    ('all-to-all', ('u32',), 16),
    ('all-gather', ('u32',), 16),
  ]
  params = jax.ShapeDtypeStruct((512, 128), jnp.float32)
  bits = wire.sent_bits_per_parameter(golden('tpu_two_hop.hlo'), params)
  assert bits == 2 * 15 / 16


def test_tpu_loop_without_a_stated_trip_count():
  collective = only(golden('tpu_nested_scan.hlo'))
  assert collective.times == 60
  assert collective.bytes == 4 * 512 * 128


@pytest.mark.parametrize(
  'old, new, times',
  [
    ('constant(5)', 'constant(7)', 84),
    ('direction=LT', 'direction=NE', None),
    ('s32[]{:T(128)} add(', 's32[]{:T(128)} multiply(', None),
  ],
)
def test_tpu_loop_is_read_not_guessed(old, new, times):
  text = golden('tpu_nested_scan.hlo')
  assert old in text
  assert only(text.replace(old, new)).times == times


@pytest.mark.parametrize('carried, times', [('limit', 6), ('next', None)])
def test_loop_limit_from_outside_must_not_change(carried, times):
  """A limit that is an element of the carry counts if the body passes it on."""
  text = module(
    '  %one = s32[] constant(-1)\n'
    '  %ten = s32[] constant(10)\n'
    '  %t = (s32[], s32[], f32[16]{0}) tuple(%one, %ten, %p)\n'
    '  ROOT %w = (s32[], s32[], f32[16]{0}) while(%t), condition=%cond,'
    ' body=%body',
    computations=f"""%body (c: (s32[], s32[], f32[16])) -> (s32[], f32[16]) {{
  %c = (s32[], s32[], f32[16]{{0}}) parameter(0)
  %count = s32[] get-tuple-element(%c), index=0
  %limit = s32[] get-tuple-element(%c), index=1
  %x = f32[16]{{0}} get-tuple-element(%c), index=2
  %two = s32[] constant(2)
  %next = s32[] add(%two, %count)
  %r = f32[16]{{0}} all-reduce(%x), replica_groups={{}}, to_apply=%add
  ROOT %t = (s32[], s32[], f32[16]{{0}}) tuple(%next, %{carried}, %r)
}}

%cond (c: (s32[], s32[], f32[16])) -> pred[] {{
  %c = (s32[], s32[], f32[16]{{0}}) parameter(0)
  %count = s32[] get-tuple-element(%c), index=0
  %limit = s32[] get-tuple-element(%c), index=1
  ROOT %less = pred[] compare(%count, %limit), direction=LT
}}
""",
  )
  assert only(text).times == times


def test_tpu_fused_asynchronous_collective_counts_once():
  """Three fusions (start, overlap, done) hold one all-gather."""
  text = golden('tpu_async_fusion.hlo')
  assert text.count(' all-gather(') == 4
  found = wire.collectives(text)
  assert [(c.kind, c.dtypes, c.bytes) for c in found] == [
    ('all-gather', ('bf16',), 2 * 2048 * 2048)
  ] * 2


def test_tpu_slices_talk_through_the_host():
  """One all-to-all over 2 x 16, an all-gather over 2 and one over 16."""
  found = wire.collectives(golden('tpu_two_slices.hlo'))
  words = 4 * 1024 * 128 // 32
  assert [(c.kind, c.bytes, c.group_size, c.between_slices) for c in found] == [
    ('all-to-all', words, 32, True),
    ('all-gather', words // 16, 2, True),
    ('all-gather', words, 16, False),
  ]


def test_tpu_reduce_scatter_is_an_all_reduce_in_a_named_fusion():
  text = module(
    '  ROOT %f = f32[2]{0} fusion(%p), kind=kCustom,'
    ' calls=%all-reduce-scatter.3',
    computations="""%all-reduce-scatter.3 (x: f32[16]) -> f32[2] {
  %x = f32[16]{0:T(128)S(1)} parameter(0)
  %all-reduce.1 = f32[16]{0:T(128)} all-reduce(%x), channel_id=1, \
replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=%add
  %i = s32[]{:T(128)} constant(0)
  ROOT %slice = f32[2]{0:T(128)} dynamic-slice(%all-reduce.1, %i), \
dynamic_slice_sizes={2}
}
""",
  )
  assert only(text).kind == 'reduce-scatter'
  assert only(text).sent_bytes == 64 * 7 / 8


# The grammar, one construct at a time.


@pytest.mark.parametrize(
  'groups, size',
  [
    ('{}', 8),
    ('{{0,1},{2,3},{4,5},{6,7}}', 2),
    ('{{0,1,2},{3}}', 3),
    ('[2,4]<=[8]', 4),
    ('[4,2]<=[2,4]T(1,0)', 2),
    ("mesh['a'=2,'b'=4] {'b'}", 4),
    ("mesh['a'=2,'b'=4] {'a','b'}", 8),
    ("mesh['a'=2,'b'=4] {'b':(2)2}", 2),
    ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", 4),
  ],
)
def test_ways_to_write_groups(groups, size):
  reduce = only(
    module(
      f'  ROOT %r = f32[16]{{0}} all-reduce(%p), channel_id=1, '
      f'replica_groups={groups}, use_global_device_ids=true, to_apply=%add'
    )
  )
  assert reduce.group_size == size
  assert reduce.sent_bytes == 2 * 64 * (size - 1) / size


@pytest.mark.parametrize(
  'opcode, attributes, size',
  [
    ('all-reduce', '', 2),
    ('all-reduce', ', channel_id=1', 2 * 4),
    ('all-reduce', ', channel_id=1, use_global_device_ids=true', 2 * 4),
    ('all-reduce', ', channel_id=1, replica_groups={{0},{1}}', 4),
    ('all-to-all', '', 2),
    ('all-to-all', ', channel_id=1', 4),
    ('collective-broadcast', ', channel_id=1', 4),
  ],
)
def test_groups_of_replicas_and_partitions(opcode, attributes, size):
  text = module(
    f'  ROOT %r = f32[16]{{0}} {opcode}(%p){attributes}',
    header='replica_count=2, num_partitions=4',
  )
  assert only(text).group_size == size


@pytest.mark.parametrize(
  'pairs, group, sent',
  [
    ('{{0,1},{1,2},{2,3},{3,0}}', 4, 64),
    ('{{0,1},{1,0},{2,3},{3,2}}', 2, 64),
    ('{{5,6},{1,2},{2,3}}', 3, 64),
    ('{{0,0},{1,1}}', 1, 0),
  ],
)
def test_permutations(pairs, group, sent):
  permute = only(
    module(
      '  ROOT %r = f32[16]{0} collective-permute(%p), '
      f'source_target_pairs={pairs}'
    )
  )
  assert permute.group_size == group
  assert permute.sent_bytes == sent


@pytest.mark.parametrize(
  'instruction, kind, buffer, sent',
  [
    (
      'collective-broadcast(%p), channel_id=1, replica_groups={{0,1,2,3}}',
      'collective-broadcast',
      64,
      64,
    ),
    (
      'ragged-all-to-all(%p, %p, %i, %i, %i, %i), channel_id=1,'
      ' replica_groups={{0,1,2,3}}',
      'ragged-all-to-all',
      64,
      48,
    ),
    (
      'all-to-all(%h, %h), channel_id=1, replica_groups={{0,1},{2,3}}',
      'all-to-all',
      64,
      32,
    ),
    (
      'collective-permute(%p, %p, %i, %i), slice_sizes={{4}},'
      ' source_target_pairs={{0,1}}',
      'collective-permute',
      16,
      16,
    ),
    (
      'send(%p, %t), channel_id=1, frontend_attributes={'
      '_xla_send_recv_source_target_pairs={{0,1},{1,2}}}',
      'collective-permute',
      64,
      64,
    ),
  ],
)
def test_rarer_forms(instruction, kind, buffer, sent):
  text = module(
    '  %h = f32[8]{0} slice(%p), slice={[0:8]}\n'
    '  %i = s32[4]{0} constant({0, 1, 2, 3})\n'
    '  %t = token[] after-all()\n'
    f'  ROOT %r = f32[16]{{0}} {instruction}'
  )
  found = only(text)
  assert (found.kind, found.bytes, found.sent_bytes) == (kind, buffer, sent)


def test_callback_to_the_own_host_is_no_collective():
  text = module(
    '  %t = token[] after-all()\n'
    '  ROOT %s = (f32[16]{0}, u32[], token[]) send(%p, %t), channel_id=1,'
    ' is_host_transfer=true'
  )
  assert wire.collectives(text) == ()


@pytest.mark.parametrize(
  'shape, size',
  [
    ('pred[16]{0}', 16),
    ('s4[16]{0}', 16),
    ('s4[15]{0:E(4)}', 8),
    ('u2[16]{0:T(128)E(2)S(1)}', 4),
    ('f4e2m1fn[16]{0:E(4)}', 8),
    ('f8e8m0fnu[16]{0}', 16),
    ('f64[2,8]{1,0:T(8,128)(2,1)}', 128),
    ('c128[16]{0}', 256),
    ('s64[<=16]{0}', 128),
    ('u32[]{:T(128)}', 4),
    ('f32[0,4]{1,0}', 0),
  ],
)
def test_bytes_of_arrays(shape, size):
  text = module(
    f'  %x = {shape} custom-call(%p), custom_call_target="a(\\"}}"\n'
    f'  ROOT %r = {shape} all-to-all(%x), replica_groups={{}}, channel_id=1'
  )
  assert only(text).bytes == size


def test_shapes_printed_with_the_operands():
  text = """HloModule old, replica_count=4
ENTRY main {
  p = f32[16]{0} parameter(0)
  ROOT r = f32[16]{0} all-reduce(f32[16]{0} p), replica_groups={},
    to_apply=add
}
"""
  assert only(text).sent_bytes == 2 * 64 * 3 / 4


def test_collectives_in_calls_count_at_each_call_and_dead_code_does_not():
  text = module(
    '  %a = f32[16]{0} call(%p), to_apply=%sum\n'
    '  ROOT %b = f32[16]{0} call(%a), to_apply=%sum',
    computations="""%sum (x: f32[16]) -> f32[16] {
  %x = f32[16]{0} parameter(0)
  ROOT %r = f32[16]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}

%dead (y: f32[16]) -> f32[16] {
  %y = f32[16]{0} parameter(0)
  ROOT %s = f32[16]{0} all-reduce(%y), replica_groups={}, to_apply=%add
}
""",
    header='replica_count=8',
  )
  assert [c.name for c in wire.collectives(text)] == ['r', 'r']


SUMS = """%one (x: f32[16]) -> f32[16] {
  %x = f32[16]{0} parameter(0)
  ROOT %r1 = f32[16]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}

%two (x: f32[16]) -> f32[16] {
  %x = f32[16]{0} parameter(0)
  ROOT %r2 = f32[16]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}
"""
BOOLEAN = 'true_computation=%one, false_computation=%two'
NUMBERED = 'branch_computations={%one, %two}'


@pytest.mark.parametrize('branches', [BOOLEAN, NUMBERED])
def test_both_branches_of_a_conditional_count(branches):
  text = module(
    '  %c = s32[] get-tuple-element(%p), index=0\n'
    f'  ROOT %r = f32[16]{{0}} conditional(%c, %p, %p), {branches}',
    computations=SUMS,
  )
  found = wire.collectives(text)
  assert [c.name for c in found] == ['r1', 'r2']
  assert [c.conditional for c in found] == [True, True]


@pytest.mark.parametrize(
  'branches, choice, taken',
  [
    (BOOLEAN, 'pred[] constant(true)', 'r1'),
    (BOOLEAN, 'pred[] constant(false)', 'r2'),
    (NUMBERED, 's32[] constant(0)', 'r1'),
    (NUMBERED, 's32[] constant(1)', 'r2'),
    (NUMBERED, 's32[] constant(7)', 'r2'),  # beyond: the last
  ],
)
def test_the_branch_that_a_constant_chooses_counts_alone(
  branches, choice, taken
):
  text = module(
    f'  %c = {choice}\n'
    f'  ROOT %r = f32[16]{{0}} conditional(%c, %p, %p), {branches}',
    computations=SUMS,
  )
  found = wire.collectives(text)
  assert [c.name for c in found] == [taken]
  assert not found[0].conditional


# Errors of the user.


@pytest.mark.parametrize(
  'text', ['', 'module @jit_f { func.func public @main() }']
)
def test_text_that_is_no_compiled_program_is_refused(text):
  with pytest.raises(ValueError, match=r'compiled\.as_text\(\)'):
    wire.collectives(text)


def test_a_lowered_function_is_refused():
  lowered = jax.jit(jnp.sin).lower(1.0)
  with pytest.raises(TypeError, match=r'\.compile\(\)'):
    wire.collectives(lowered)


def test_undefined_operands_are_refused():
  with pytest.raises(ValueError, match='%q is not defined'):
    wire.collectives(module('  ROOT %r = f32[16] all-reduce(%q)'))


def test_unknown_groups_are_refused():
  text = module('  ROOT %r = f32[16] all-reduce(%p), replica_groups=v9:8')
  with pytest.raises(ValueError, match='v9:8'):
    wire.collectives(text)


@pytest.mark.parametrize('params', [{}, {'count': jnp.zeros(3, jnp.int32)}])
def test_params_without_parameters_are_refused(params):
  with pytest.raises(ValueError, match='floating'):
    wire.sent_bits_per_parameter(module('  ROOT %c = f32[16] copy(%p)'), params)
