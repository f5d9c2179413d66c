"""Bytes: what a compiled program really sends.

A formula for the cost of a method is a hope; the compiled program is the fact.
`collectives` reads every collective out of the text of a compiled program, for
CPU, GPU and TPU, and `sent_bits_per_parameter` adds them up. `exchange_seconds`
says how long a `Link` takes for them, `break_even` when sending less pays.

What one worker sends in one execution of a collective over groups of `n`
workers, by the usual bandwidth-optimal algorithm:

  ==================== ============================= ======================
  kind                 `bytes`: the full buffer      `sent_bytes`
  ==================== ============================= ======================
  all-reduce           operand = result              2 (n-1)/n bytes
  all-gather           result (n operands)           (n-1)/n bytes
  reduce-scatter       operand (n results)           (n-1)/n bytes
  all-to-all           operand(s), one piece a peer  (n-1)/n bytes
  ragged-all-to-all    first operand (upper bound)   (n-1)/n bytes
  collective-permute   operand                       bytes
  collective-broadcast operand                       bytes
  ==================== ============================= ======================

A collective over groups of one worker, and a permutation that leaves everything
where it is, send nothing. Several operands are added up. If groups or roles
differ, the figure is that of the busiest worker.

A worker is here one device. Where a worker is an island of several, the figures
are those of each of them, and what it sends to others of its island is there,
too.

What the text can not show is not counted: protocol framing, padding to tiles,
and copies that a hand-written kernel starts by itself.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import math
import re

import jax
import jax.numpy as jnp

from signmomentum import hlo, links

_FACTORS = {
  'all-reduce': 2,
  'all-gather': 1,
  'reduce-scatter': 1,
  'all-to-all': 1,
  'ragged-all-to-all': 1,
}
_WHOLE = ('collective-permute', 'collective-broadcast')
# How the runtime between TPU slices names what a host transfer carries.
_TRANSFERS = {
  'ALL_REDUCE': 'all-reduce',
  'ALL_GATHER': 'all-gather',
  'REDUCE_SCATTER': 'reduce-scatter',
  'ALL_TO_ALL': 'all-to-all',
  'ONE_TO_ONE': 'collective-permute',
}

Link = links.Link
break_even = links.break_even


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective of a compiled program, as one worker sees it.

  Attributes:
    kind: The HLO name without `-start`: `'all-reduce'`, `'all-gather'`, ...
    name: The instruction's name in the program.
    dtypes: Element types of the operands, each once, in HLO's names (`'u32'`).
    bytes: Size of the full logical buffer, see the table of this module.
    group_size: How many workers talk to each other (the largest group).
    sent_bytes: What a worker sends in one execution, see the same table.
    times: Executions per run of the program by the trip counts of the loops
      around it; None if one of these is unknown.
    conditional: True inside a branch, which may be taken or not; `times` is
      then the count for a branch that is always taken. (Where a constant in
      the program chooses, only the chosen branch is there.)
    between_slices: True for TPU slices that talk over the hosts' network.
    op_name: Where the program's source asked for it, or an empty string.

  Example:
    >>> from signmomentum import wire
    >>> gather = wire.Collective(
    ...   'all-gather', 'all.1', ('u32',), 128, group_size=4, sent_bytes=96.0
    ... )
    >>> gather.sent_bytes * gather.times
    96.0
  """

  kind: str
  name: str
  dtypes: tuple[str, ...]
  bytes: int
  group_size: int
  sent_bytes: float
  times: int | None = 1
  conditional: bool = False
  between_slices: bool = False
  op_name: str = ''


def collectives(compiled: jax.stages.Compiled | str) -> tuple[Collective, ...]:
  """Lists every collective that a compiled program executes.

  Each is listed once for each place that it is executed from: an asynchronous
  start/done pair is one collective, and so are the pieces into which a TPU
  program splits one that it overlaps with computation. A computation called
  from two places counts at both. What dead code contains is not listed.

  Args:
    compiled: A compiled program (`jax.jit(f).lower(...).compile()`) or its
      text (`.as_text()`).

  Returns:
    The collectives in the program's order.

  Raises:
    TypeError: If `compiled` is neither.
    ValueError: If the text is not one compiled program, or has a construct
      that this function does not know (it never guesses).

  Example:
    >>> from signmomentum import wire
    >>> program = '''
    ... HloModule step, num_partitions=4
    ...
    ... ENTRY %main (votes: u32[8]) -> u32[32] {
    ...   %votes = u32[8]{0} parameter(0)
    ...   ROOT %all = u32[32]{0} all-gather(%votes), dimensions={0},
    ...     replica_groups={{0,1,2,3}}, channel_id=1, use_global_device_ids=true
    ... }
    ... '''
    >>> (gather,) = wire.collectives(program)
    >>> gather.kind, gather.dtypes, gather.bytes, gather.group_size
    ('all-gather', ('u32',), 128, 4)
    >>> gather.sent_bytes, gather.times
    (96.0, 1)
  """
  program = hlo.parse(_text(compiled))
  found = _walk(program, hlo.Frame(program.entry), times=1, conditional=False)
  return tuple(collective for _, collective in found)


def sent_bits_per_parameter(
  compiled: jax.stages.Compiled | str, params
) -> float:
  """Bits that one worker sends per parameter in one run of a program.

  The sum of `sent_bytes * times * 8` over all collectives of the program (also
  those of its loss and metrics), divided by the number of parameters. Every
  branch of a conditional is counted as taken, so that the figure is an upper
  bound for a program that has collectives in several branches.

  Args:
    compiled: A compiled program or its text, as for `collectives`.
    params: One worker's parameters: a tree of arrays or
      `jax.ShapeDtypeStruct`s. Leaves of floating dtype are counted; integer
      leaves, which no optimizer moves, are not.

  Returns:
    Bits per parameter. A program of many steps gives the bits of all of them.

  Raises:
    ValueError: If a collective is in a loop of unknown length, or if `params`
      has no element of floating dtype.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from signmomentum import wire
    >>> params = {'w': jnp.zeros((8, 4)), 'b': jnp.zeros(4)}
    >>> alone = jax.jit(lambda p: jax.tree.map(jnp.sign, p))
    >>> wire.sent_bits_per_parameter(alone.lower(params).compile(), params)
    0.0
  """
  count = sum(
    math.prod(jnp.shape(leaf))
    for leaf in jax.tree.leaves(params)
    if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
  )
  if not count:
    raise ValueError(
      'params has no element of floating dtype to divide by; pass the tree of'
      " one worker's parameters (arrays or jax.ShapeDtypeStruct)."
    )
  sending = _sending(collectives(compiled))
  return sum(8 * c.sent_bytes * c.times for c in sending) / count


def exchange_seconds(
  program: jax.stages.Compiled | str | Sequence[Collective],
  link: Link,
  algorithm: str = 'ring',
) -> float:
  """Seconds in which a link carries what one run of a program sends.

  The sum over its collectives, one after the other, of

    times * (8 * sent_bytes / bits_per_second + hops * latency_seconds)

  where `links.hops` has the hops of each kind. Encoding and decoding are not
  in it, and no protocol's framing (of Ethernet, IP and TCP: 4.6 % of the bytes
  that are sent, and 1 to 2 % for acknowledgements). Every branch of a
  conditional is counted as taken.

  Args:
    program: A compiled program or its text, as for `collectives`, or the
      collectives themselves.
    link: What joins each worker to the others.
    algorithm: How reductions and gatherings hop: `'ring'` (as gloo does, and
      NCCL for large arrays), `'tree'` or `'direct'`. It matters for latency
      only.

  Raises:
    ValueError: If a collective is in a loop of unknown length, or for an
      unknown algorithm.

  Example:
    >>> from signmomentum import wire
    >>> gather = wire.Collective('all-gather', 'g', ('u32',), 4000, 4, 3000)
    >>> wire.exchange_seconds([gather], wire.Link(1e6, latency_seconds=0.01))
    0.054
  """
  if isinstance(program, (str, jax.stages.Compiled)):
    program = collectives(program)
  return sum(
    c.times
    * (
      8 * c.sent_bytes / link.bits_per_second
      + links.hops(c.kind, c.group_size, algorithm) * link.latency_seconds
    )
    for c in _sending(program)
  )


def _sending(found: Iterable[Collective]) -> list[Collective]:
  """Those that send; all must say how often."""
  sending = [c for c in found if c.sent_bytes]
  unknown = [c.name for c in sending if c.times is None]
  if unknown:
    raise ValueError(
      f'Collectives {unknown} are in a loop whose number of iterations the'
      ' compiled program does not tell. Compile one step without the loop, or'
      ' use jax.lax.scan (or fori_loop) with a length known when compiling.'
    )
  return sending


def _text(compiled: jax.stages.Compiled | str) -> str:
  if isinstance(compiled, str):
    return compiled
  if isinstance(compiled, jax.stages.Compiled):
    text = compiled.as_text()
    if text is None:
      raise ValueError('This backend does not give the text of its programs.')
    return text
  raise TypeError(
    'Pass a compiled program, jax.jit(f).lower(...).compile(), or its text;'
    f' got {type(compiled).__name__}.'
  )


# Walking from the entry into everything that it calls.


def _walk(
  program: hlo.Program, frame: hlo.Frame, times: int | None, conditional: bool
) -> Iterator[tuple[str, Collective]]:
  """Yields the chain that each collective belongs to, and the collective."""
  # A TPU program that overlaps a collective with computation repeats it in the
  # fusion that starts it, those that go on with it and the one that ends it.
  # These are siblings with a common chain_id. (A channel does not tell them
  # from other collectives: a program may use one channel for all.)
  chains = set()
  for instruction in frame.computation.instructions.values():
    opcode = instruction.opcode
    if kind := _kind(instruction):
      # The name of the computation is all that tells this TPU fusion, of an
      # all-reduce and the slice that a worker keeps, from a real all-reduce.
      if frame.computation.name.startswith('all-reduce-scatter'):
        kind = kind.replace('all-reduce', 'reduce-scatter')
      collective = _collective(program, frame.computation, instruction, kind)
      yield (
        _frontend(instruction, 'chain_id'),
        dataclasses.replace(collective, times=times, conditional=conditional),
      )
      continue
    if opcode.endswith(('-done', '-update')):
      continue  # Its start has been followed.
    for name, loop, trips in _callees(program, frame, instruction):
      inner = hlo.Frame(program.computations[name], frame, loop)
      product = None if None in (times, trips) else times * trips
      branch = conditional or (
        opcode == 'conditional'
        and len(hlo.branches(program, frame, instruction)) > 1
      )
      for chain, collective in _walk(program, inner, product, branch):
        if opcode == 'fusion' and chain:
          if chain in chains:
            continue
          chains.add(chain)
        yield chain, collective


def _callees(
  program: hlo.Program, frame: hlo.Frame, instruction: hlo.Instruction
) -> Iterator[tuple[str, hlo.Instruction | None, int | None]]:
  """Yields name, loop, and executions of the computations called."""
  attributes = instruction.attributes
  if instruction.opcode == 'while':
    trips = hlo.trip_count(program, frame, instruction)
    checks = None if trips is None else trips + 1
    yield hlo.reference(attributes['condition']), instruction, checks
    yield hlo.reference(attributes['body']), instruction, trips
    return
  if instruction.opcode == 'conditional':
    for name in hlo.branches(program, frame, instruction):
      yield name, None, 1
    return
  for key in ('calls', 'to_apply', 'called_computations'):
    for name in hlo.split(attributes.get(key, '').strip('{}')):
      yield hlo.reference(name), None, 1


# One collective: its kind, its groups, its bytes.


def _kind(instruction: hlo.Instruction) -> str | None:
  kind = instruction.opcode.removesuffix('-start')
  if kind in _FACTORS or kind in _WHOLE:
    return kind
  if kind != 'send':
    return None
  attributes = instruction.attributes
  if transfer := _frontend(instruction, '_xla_megascale_transfer_type'):
    if transfer not in _TRANSFERS:
      raise ValueError(
        f'{instruction.name}: unknown transfer between slices {transfer!r};'
        f' known are {sorted(_TRANSFERS)}.'
      )
    return _TRANSFERS[transfer]
  # Otherwise a callback of this worker's own host, or a permutation in parts.
  to_host = attributes.get('is_host_transfer') == 'true'
  return None if to_host else 'collective-permute'


def _frontend(instruction: hlo.Instruction, key: str) -> str:
  attributes = instruction.attributes.get('frontend_attributes', '{}')
  for attribute in hlo.split(attributes[1:-1]):
    name, _, value = attribute.partition('=')
    if name == key:
      return value.strip('"')
  return ''


def _collective(
  program: hlo.Program,
  computation: hlo.Computation,
  instruction: hlo.Instruction,
  kind: str,
) -> Collective:
  operands = instruction.operands
  if instruction.opcode == 'send' or kind == 'ragged-all-to-all':
    operands = operands[:1]  # The others are a token, offsets and sizes.
  arrays = []
  for operand in operands:
    defined = computation.instructions.get(hlo.reference(operand))
    if defined is None:
      raise ValueError(f'{instruction.name}: {operand} is not defined.')
    arrays += hlo.ARRAY.findall(defined.shape)
  size = sum(hlo.array_bytes(*array) for array in arrays)
  if kind == 'collective-permute':
    group = _permuted(instruction)
    if slices := instruction.attributes.get('slice_sizes'):
      # In place: only these slices of the first operand are sent.
      dtype, _, layout = arrays[0]
      size = sum(
        hlo.array_bytes(dtype, dimensions, layout)
        for dimensions in re.findall(r'[\d,]*\d', slices)
      )
  else:
    group = _group_size(program, instruction, kind)
  if kind == 'all-gather':
    size *= group
  if group == 1:
    sent = 0.0
  elif kind in _FACTORS:
    sent = _FACTORS[kind] * size * (group - 1) / group
  else:
    sent = float(size)
  metadata = instruction.attributes.get('metadata', '')
  op_name = re.search(r'op_name="((?:[^"\\]|\\.)*)"', metadata)
  return Collective(
    kind=kind,
    name=instruction.name,
    dtypes=tuple(dict.fromkeys(dtype for dtype, _, _ in arrays)),
    bytes=size,
    group_size=group,
    sent_bytes=sent,
    between_slices=bool(_frontend(instruction, '_xla_megascale_transfer_type')),
    op_name=op_name[1] if op_name else '',
  )


def _group_size(
  program: hlo.Program, instruction: hlo.Instruction, kind: str
) -> int:
  """Workers in the largest group, by XLA's rules for replicas x partitions."""
  attributes = instruction.attributes
  if instruction.opcode == 'send':
    # Slices times the places within each: peers have the same place.
    target = _frontend(instruction, '_xla_megascale_target')
    return _largest(instruction, target.partition('x')[0])
  groups = attributes.get('replica_groups', '{}')
  # In a mesh whose devices are not in order, they come before the axes.
  groups += attributes.get('device_ids', '').partition(' ')[2]
  by_partition = 'channel_id' in attributes
  # A group lists replicas, partitions, or places in the whole program.
  if kind in ('all-to-all', 'ragged-all-to-all', 'collective-broadcast'):
    everyone = program.partitions if by_partition else program.replicas
    each = 1
  elif attributes.get('use_global_device_ids') == 'true':
    everyone, each = program.replicas * program.partitions, 1
  else:
    everyone = program.replicas
    each = program.partitions if by_partition else 1
  if not re.search(r'\d', groups):
    return everyone * each
  return _largest(instruction, groups) * each


def _largest(instruction: hlo.Instruction, groups: str) -> int:
  """The size of the largest group, in any of the ways to write groups."""
  if re.fullmatch(r'\{[\d,\s{}]+\}', groups):  # {{0,1},{2,3}}, {0,1}
    return max(
      len(re.findall(r'\d+', group))
      for group in re.findall(r'[\d,\s]+', groups)
    )
  if match := re.match(r'\[\d+,(\d+)\]<=\[', groups):  # [2,4]<=[4,2]T(1,0)
    return int(match[1])
  if match := re.fullmatch(r'mesh\[(.*)\] ?\{(.*)\}', groups):
    # mesh['x'=4,'y'=2] {'y','x':(2)2}: whole axes, or a factor of an axis.
    sizes = dict(axis.split('=') for axis in hlo.split(match[1]))
    axes = [re.split(r':\(\d+\)', axis) for axis in hlo.split(match[2])]
    return math.prod(
      int(part[0] if part else sizes[axis]) for axis, *part in axes
    )
  raise ValueError(f'{instruction.name}: can not read the groups {groups!r}.')


def _permuted(instruction: hlo.Instruction) -> int:
  """Workers in the largest chain or cycle of a permutation, 1 if none moves."""
  pairs = (
    instruction.attributes.get('source_target_pairs')
    or _frontend(instruction, '_xla_megascale_target')
    or _frontend(instruction, '_xla_send_recv_source_target_pairs')
  )
  if not pairs:
    raise ValueError(f'{instruction.name}: can not find who sends to whom.')
  targets = dict(re.findall(r'\{\s*(\d+)\s*(?:,|->)\s*(\d+)\s*\}', pairs))
  # A chain starts where nobody sends to; what then remains are cycles.
  largest = 1
  for start in [*(set(targets) - set(targets.values())), *list(targets)]:
    members = {start}
    while start in targets:
      start = targets.pop(start)
      members.add(start)
    largest = max(largest, len(members))
  return largest
