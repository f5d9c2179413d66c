"""Bytes that a compiled TPU program reads from and writes to its main memory.

XLA's own figure, `bytes accessed`, adds up what all instructions touch, also in
the fast memory on the chip: an array that is first fetched into that memory, or
written back from it, counts twice. What limits an optimizer is the bandwidth of
the main memory, so here only arrays without a memory space of their own in the
program's text (`S(1)` is the fast memory) are counted, each time that they are
read or written.
"""

import re

import jax

from signmomentum import hlo

_FREE = (
  'after-all',
  'bitcast',
  'constant',
  'get-tuple-element',
  'parameter',
  'tuple',
)
_SLICES = ('slice', 'dynamic-slice', 'slice-start', 'gather')


def bytes_accessed(compiled: jax.stages.Compiled | str) -> int:
  """Adds up reads and writes of the main memory in one run of a program.

  An operand of which only a slice is read counts as that slice, and an update
  in place as what it overwrites. Every branch of a conditional counts as taken.

  Args:
    compiled: a program compiled for TPU, or its text.

  Raises:
    ValueError: a loop has no length that the text tells.
  """
  text = compiled if isinstance(compiled, str) else compiled.as_text()
  program = hlo.parse(text)
  return _run(program, hlo.Frame(program.entry))


def _run(program: hlo.Program, frame: hlo.Frame) -> int:
  total = 0
  for instruction in frame.computation.instructions.values():
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith(('-done', '-update')):
      continue  # A start counts for its end.
    if opcode == 'while':
      trips = hlo.trip_count(program, frame, instruction)
      if trips is None:
        raise ValueError(f'{instruction.name}: a loop of unknown length.')
      body = hlo.reference(instruction.attributes['body'])
      inner = hlo.Frame(program.computations[body], frame, instruction)
      total += trips * _run(program, inner)
    elif opcode == 'conditional':
      for name in hlo.branches(program, frame, instruction):
        total += _run(program, hlo.Frame(program.computations[name], frame))
    elif opcode == 'call' or opcode == 'async-start':
      called = (
        instruction.attributes.get('to_apply')
        or (instruction.attributes['calls'])
      )
      name = hlo.reference(called)
      total += _run(program, hlo.Frame(program.computations[name], frame))
    elif opcode == 'fusion':
      total += _fusion(program, frame.computation, instruction)
    else:
      total += _single(frame.computation, instruction)
  return total


def _single(computation: hlo.Computation, instruction: hlo.Instruction) -> int:
  """An instruction on its own."""
  shapes = [
    computation.instructions[hlo.reference(operand)].shape
    for operand in instruction.operands
  ]
  opcode = instruction.opcode
  if opcode.endswith('-start'):
    # A copy's shape begins with the copy, another's with its operands.
    parts = hlo.split(instruction.shape[1:-1])
    result = parts[0 if opcode == 'copy-start' else 1]
  else:
    result = instruction.shape
  if opcode in _SLICES:
    return _slow(result) + (_size(result) if _is_slow(shapes[0]) else 0)
  if opcode == 'dynamic-update-slice':
    return _slow(shapes[1]) + (_size(shapes[1]) if _is_slow(result) else 0)
  return sum(map(_slow, shapes)) + _slow(result)


def _fusion(
  program: hlo.Program,
  computation: hlo.Computation,
  instruction: hlo.Instruction,
) -> int:
  """A fusion reads its operands once and writes what its root is."""
  fused = program.computations[hlo.reference(instruction.attributes['calls'])]
  total = 0
  for index, operand in enumerate(instruction.operands):
    shape = computation.instructions[hlo.reference(operand)].shape
    if _is_slow(shape):
      total += min(_size(shape), _read(program, fused, index))
  roots = [fused.root]
  shapes = [instruction.shape]
  if fused.instructions[fused.root].opcode == 'tuple':
    roots = [
      hlo.reference(operand)
      for operand in fused.instructions[fused.root].operands
    ]
    shapes = hlo.split(instruction.shape[1:-1])
  for name, shape in zip(roots, shapes, strict=True):
    if _is_slow(shape):
      total += _written(program, fused, name, shape)
  return total


def _read(program: hlo.Program, fused: hlo.Computation, index: int) -> int:
  """What a fused computation reads of one of its parameters, at most."""
  parameter = next(
    instruction
    for instruction in fused.instructions.values()
    if instruction.opcode == 'parameter'
    and instruction.operands == (str(index),)
  )
  total, names = 0, [parameter.name]
  while names:
    name = names.pop()
    for user in fused.instructions.values():
      operands = [hlo.reference(operand) for operand in user.operands]
      if name not in operands:
        continue
      if user.opcode == 'bitcast':
        names.append(user.name)
      elif user.opcode in _SLICES and operands[0] == name:
        total += _size(user.shape)
      elif user.opcode == 'dynamic-update-slice' and operands[0] == name:
        continue  # Overwritten in place.
      elif user.opcode == 'fusion':
        called = hlo.reference(user.attributes['calls'])
        inner = program.computations[called]
        total += sum(
          _read(program, inner, place)
          for place, operand in enumerate(operands)
          if operand == name
        )
      else:
        return _size(parameter.shape)
  return total


def _written(
  program: hlo.Program, fused: hlo.Computation, name: str, shape: str
) -> int:
  root = fused.instructions[name]
  while root.opcode in ('bitcast', 'copy'):
    root = fused.instructions[hlo.reference(root.operands[0])]
  if root.opcode == 'fusion':
    inner = program.computations[hlo.reference(root.attributes['calls'])]
    return _written(program, inner, inner.root, shape)
  if root.opcode == 'dynamic-update-slice':
    update = fused.instructions[hlo.reference(root.operands[1])]
    return _size(update.shape)
  return _size(shape)


def _is_slow(shape: str) -> bool:
  return not re.search(r'S\([1-9]\d*\)', shape)


def _slow(shape: str) -> int:
  """Size of the arrays of a shape that are in the main memory."""
  return sum(
    _size(match[0]) for match in hlo.ARRAY.finditer(shape) if _is_slow(match[0])
  )


def _size(shape: str) -> int:
  return sum(hlo.array_bytes(*array) for array in hlo.ARRAY.findall(shape))
