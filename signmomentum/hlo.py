"""HLO text: the computations and instructions of a compiled program.

A program is computations, a computation is instructions,

  %name = shape opcode(operands), attribute=value, ...

and an operand is mostly only a name, whose shape is where it is defined.
"""

import dataclasses
import math
import re

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]')
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|/\*.*?\*/')
_DEFINITION = re.compile(r'\s*(ROOT\s+)?%?([\w.\-]+)\s+=\s+')
_HEADER = re.compile(r'(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*)?\{\s*$')
_OPCODE = re.compile(r'\s*([\w\-]+)\(')
_WIDTH = re.compile(r'(?:bf|f|s|u|c)(\d+)')
ARRAY = re.compile(r'([a-z]\w*)\[([^\]]*)\](\{[^{}]*\})?')


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation; operands and attributes are text."""

  name: str
  shape: str
  opcode: str
  operands: tuple[str, ...]
  attributes: dict[str, str]


@dataclasses.dataclass
class Computation:
  """Instructions by name, in order, and the name of the result."""

  name: str
  instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)
  root: str = ''


@dataclasses.dataclass(frozen=True)
class Program:
  """All computations by name, and the size of the program's world."""

  entry: Computation
  computations: dict[str, Computation]
  replicas: int
  partitions: int


def parse(text: str) -> Program:
  """Parses the text of one module."""
  headers = re.findall(r'^\s*HloModule\b.*', text, re.MULTILINE)
  if len(headers) != 1:
    raise ValueError(
      f'Expected the text of one compiled program, found {len(headers)} HLO'
      ' modules. Pass compiled.as_text(), not the text of a lowered function.'
    )
  computations, entry = {}, None
  computation, statement, root, depth = None, '', False, 0
  for line in text.splitlines():
    if '/*' in line:
      line = _COMMENT.sub(r'\1', line)
    if computation is None:
      if match := _HEADER.match(line.strip()):
        computation = Computation(match[2])
        computations[match[2]] = computation
        entry = computation if match[1] else entry
      continue
    closes = depth == 0 and line.strip().startswith('}')
    if match := None if depth or closes else _DEFINITION.match(line):
      _define(computation, statement, root)
      statement, root = line, bool(match[1])
    elif closes:
      _define(computation, statement, root)
      computation, statement = None, ''
      continue
    else:
      statement += ' ' + line.strip()  # An instruction over several lines.
    depth += _depth(line)
  if entry is None:
    raise ValueError('The program has no ENTRY computation.')
  return Program(
    entry,
    computations,
    _count(r'\breplica_count=(\d+)', headers[0]),
    _count(r'\bnum_partitions=(\d+)', headers[0]),
  )


def _define(computation: Computation, statement: str, root: bool) -> None:
  if not statement.strip():
    return
  match = _DEFINITION.match(statement)
  start = match.end()
  if statement[start] == '(':
    stop = _close(statement, start)
  elif array := ARRAY.match(statement, start):
    stop = array.end()
  else:
    raise ValueError(f'Can not read the shape in: {statement.strip()[:200]}')
  opcode = _OPCODE.match(statement, stop)
  if not opcode:
    raise ValueError(f'Can not read the instruction: {statement.strip()[:200]}')
  end = _close(statement, opcode.end() - 1)
  attributes = {}
  for attribute in split(statement[end:]):
    key, _, value = attribute.partition('=')
    attributes[key.strip()] = value.strip()
  computation.instructions[match[2]] = Instruction(
    match[2],
    statement[start:stop],
    opcode[1],
    tuple(split(statement[opcode.end() : end - 1])),
    attributes,
  )
  if root:
    computation.root = match[2]


def _depth(text: str) -> int:
  """Brackets opened minus brackets closed, outside strings."""
  tokens = _TOKEN.findall(text)
  return sum((t in tuple('([{')) - (t in tuple(')]}')) for t in tokens)


def _close(text: str, start: int) -> int:
  """The position behind the bracket that closes the one at `start`."""
  depth = 0
  for match in _TOKEN.finditer(text, start):
    depth += _depth(match[0])
    if depth == 0:
      return match.end()
  raise ValueError(f'A bracket is never closed in: {text.strip()[:200]}')


def split(text: str) -> list[str]:
  """Splits at the commas that are in no bracket and no string."""
  parts, depth, start = [], 0, 0
  for match in _TOKEN.finditer(text):
    depth += _depth(match[0])
    if match[0] == ',' and depth == 0:
      parts.append(text[start : match.start()])
      start = match.end()
  parts.append(text[start:])
  return [part.strip() for part in parts if part.strip()]


def _count(pattern: str, header: str) -> int:
  match = re.search(pattern, header)
  return int(match[1]) if match else 1


def reference(operand: str) -> str:
  """The name that an operand or a called computation refers to."""
  return operand.split()[-1].lstrip('%')


def array_bytes(dtype: str, dimensions: str, layout: str) -> int:
  """Size of an array: below a byte only where its layout says so, `E(4)`."""
  width = {'pred': 8, 'token': 0, 'opaque': 0}.get(dtype)
  if width is None:
    match = _WIDTH.match(dtype)
    if not match:
      raise ValueError(f'Unknown element type {dtype!r} in the program.')
    packed = re.search(r'E\((\d+)\)', layout)
    width = int(packed[1]) if packed else max(8, int(match[1]))
  sizes = [int(size.strip(' <=')) for size in split(dimensions)]
  return -(-math.prod(sizes) * width // 8)


# What runs, and how often.


@dataclasses.dataclass(frozen=True)
class Frame:
  """A computation in execution; `loop` is the while that runs it, if any."""

  computation: Computation
  caller: 'Frame | None' = None
  loop: Instruction | None = None


def branches(
  program: Program, frame: Frame, conditional: Instruction
) -> tuple[str, ...]:
  """The computations of a conditional that may run.

  All of them, or the one that a constant in the program chooses: the compiler
  does not remove the others if there are collectives in them.
  """
  attributes = conditional.attributes
  choice = reference(conditional.operands[0])
  if 'branch_computations' in attributes:
    names = split(attributes['branch_computations'].strip('{}'))
    taken = _constant(program, frame, choice)
    if taken is not None and not 0 <= taken < len(names):
      taken = len(names) - 1  # as XLA defines it
  else:
    names = [attributes['true_computation'], attributes['false_computation']]
    taken = _constant(program, frame, choice)
    taken = None if taken is None else 1 - taken
  names = tuple(map(reference, names))
  return names if taken is None else (names[taken],)


def trip_count(program: Program, frame: Frame, loop: Instruction) -> int | None:
  """Iterations of a while loop, or None if they can not be known."""
  config = loop.attributes.get('backend_config', '')
  if match := re.search(r'known_trip_count\W+n\W+(\d+)', config):
    return int(match[1])
  # TPU programs do not say; read a counted loop: `counter < limit` as the
  # condition, `counter + step` in the body, and all three constants.
  body = program.computations[reference(loop.attributes['body'])]
  condition = Frame(
    program.computations[reference(loop.attributes['condition'])],
    frame,
    loop,
  )
  check = condition.computation.instructions[condition.computation.root]
  if check.attributes.get('direction') != 'LT':
    return None
  counter, limit = map(reference, check.operands)
  index = _element(condition.computation, counter)
  limit = _constant(program, condition, limit)
  start = _constant(program, frame, _initial(frame.computation, loop, index))
  increment = body.instructions.get(_final(body, index) or '')
  if increment is None or increment.opcode != 'add':
    return None
  addends = [reference(operand) for operand in increment.operands]
  steps = [addend for addend in addends if _element(body, addend) != index]
  if len(steps) != 1:
    return None
  step = _constant(program, Frame(body, frame, loop), steps[0])
  if None in (limit, start, step) or step <= 0:
    return None
  return max(0, -((start - limit) // step))


def _constant(program: Program, frame: Frame, name: str | None) -> int | None:
  """The integer that a name stands for, also from outside a loop, or None.

  A boolean is 0 or 1.
  """
  name = _source(frame.computation, name)
  if name is None:
    return None
  instruction = frame.computation.instructions[name]
  if instruction.opcode == 'constant':
    value = instruction.operands[0]
    value = {'false': '0', 'true': '1'}.get(value, value)
    return int(value) if re.fullmatch(r'-?\d+', value) else None
  index = _element(frame.computation, name)
  if frame.loop is None or index is None:
    return None
  body = program.computations[reference(frame.loop.attributes['body'])]
  if _element(body, _final(body, index)) != index:
    return None  # Not the same in every iteration.
  initial = _initial(frame.caller.computation, frame.loop, index)
  return _constant(program, frame.caller, initial)


def _source(computation: Computation, name: str | None) -> str | None:
  """Follows a name through copies."""
  while instruction := computation.instructions.get(name or ''):
    if instruction.opcode not in ('copy', 'copy-start', 'copy-done', 'bitcast'):
      return name
    name = reference(instruction.operands[0])
  return None


def _element(computation: Computation, name: str | None) -> int | None:
  """Which element of the computation's parameter a name is, if it is one."""
  name = _source(computation, name)
  if name is None:
    return None
  instruction = computation.instructions[name]
  if instruction.opcode != 'get-tuple-element':
    return None
  whole = computation.instructions.get(reference(instruction.operands[0]))
  if whole is None or whole.opcode != 'parameter':
    return None
  return int(instruction.attributes['index'])


def _initial(
  computation: Computation, loop: Instruction, index: int | None
) -> str | None:
  return _item(computation, reference(loop.operands[0]), index)


def _final(body: Computation, index: int | None) -> str | None:
  return _item(body, body.root, index)


def _item(computation: Computation, name: str, index: int | None) -> str | None:
  """The name of one element of a tuple that is built in this computation."""
  whole = computation.instructions.get(_source(computation, name) or '')
  if whole is None or whole.opcode != 'tuple' or index is None:
    return None
  return _source(computation, reference(whole.operands[index]))
