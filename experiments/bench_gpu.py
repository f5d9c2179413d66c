"""Measures on a GPU what votes and a training step with them cost.

    python -m experiments.bench_gpu --json=bench_gpu.json    # under 10 minutes
    python -m experiments.bench_gpu --platform=cpu           # tries the script

1. The parts of a vote take turns with `x * 1.5` on an array of as many bytes:
   each part reads its inputs once and writes its outputs once, at best. `share`
   is the part's rate as a share of that copy's; 80 % is the target. Rates are
   by what has to be moved; `by the compiler` is what XLA says it moves.
2. The update of `distributed_lion` on one worker takes turns with that of
   `optax.lion`, and a training step of GPT-2 small, in bfloat16, with the first
   takes turns with a plain step with the second; 1.02 is the target for steps.
   The memory is that of the compiled programs.

Before that, a small vote is checked. What to look at where a target is missed:

- pack: more bytes by the compiler than have to be moved say that comparisons
  were written to memory; as many, that XLA's kernel for a reduction over 16
  rows is slow. `pack_by_slices` is the same without a reduction: if it is
  faster, `bits` should have it on GPUs. If neither reaches the target, a Pallas
  kernel should: a block of 32 rows by a few hundred columns for each program,
  ors in registers.
- vote: its 8 voters tie often, and coins are drawn for all words if there is
  any tie. In `vote_decided` nobody ties: if only that reaches the target, the
  coins are what is slow. (The compiler's bytes have the branch that draws them,
  taken or not.) If both are slow, either the adders were split into several
  kernels, or a branch waits for the host to learn which way to go, the same
  time for any size: compare a run with --parameters=100000000.
- unpack: the compiler's bytes tell whether words are repeated in memory, by
  `bits.unpack`, before they become numbers.
- the step: the difference of the updates says how much of the step's difference
  is theirs. Their gradients have no zeros; in a step a single zero, as bfloat16
  may underflow to, has coins drawn for all words. What is left is memory (try
  another --batch), or what was compiled: compare the operations in traces
  (`experiments.profile_rounds --trace`).
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import json
from typing import Any, NamedTuple

from absl import flags
import jax

from experiments import (
  entry,
  errors,
  lion_steps,
  outputs,
  provenance,
  vote_parts,
)
from experiments.models import decoder, gpt2

_BYTES = 16  # of memory that a part and its copy need, for each parameter


class Size(NamedTuple):
  """How much is measured.

  Attributes:
    parameters: of a vote.
    model: that is trained.
    batch: sequences in a step.
    calls: in a turn.
  """

  parameters: int
  model: decoder.DecoderConfig
  batch: int
  calls: int


_TINY = decoder.DecoderConfig(
  vocab_size=512,
  context=32,
  num_layers=1,
  num_heads=2,
  num_kv_heads=2,
  width=64,
  mlp='gelu',
  mlp_width=256,
  norm='layer',
  norm_epsilon=1e-5,
  positions='learned',
  rope_theta=10_000.0,
  tie_embeddings=True,
  dropout=0.0,
  use_bias=True,
  dtype='bfloat16',
  attention='xla',
  scan_layers=False,
  rematerialise=False,
)
SIZES = {
  'gpu': Size(10**9, gpt2.small('bfloat16'), batch=8, calls=5),
  'cpu': Size(2**20, _TINY, batch=2, calls=1),
}

_PLATFORM = flags.DEFINE_enum(
  'platform', 'gpu', list(SIZES), 'What to measure; cpu: small sizes.'
)
_PARAMETERS = flags.DEFINE_integer(
  'parameters', None, 'Parameters of a vote.', lower_bound=vote_parts.ROW
)
_BATCH = flags.DEFINE_integer(
  'batch', None, 'Sequences in a training step.', lower_bound=1
)
_CONTEXT = flags.DEFINE_integer(
  'context', None, 'Tokens in a sequence.', lower_bound=1
)
_VOTERS = flags.DEFINE_integer('voters', 8, 'Of a vote.', lower_bound=1)
_REPEATS = flags.DEFINE_integer('repeats', 15, 'Turns of each.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Of values, votes and the model.')
_JSON = flags.DEFINE_string('json', None, 'Where to write the figures.')


def table(figures: dict[str, Any]) -> str:
  """The figures for people."""
  lines = [
    f'{figures["parameters"]:,} parameters, {figures["voters"]} voters, on'
    f' {figures["versions"]["device"]}',
    'part              GB moved  by the compiler         ms      GB/s    share',
  ]
  for name, row in figures['parts'].items():
    by_compiler = row['compiler_bytes']
    said = 'unknown' if by_compiler is None else f'{by_compiler / 1e9:.4f}'
    lines.append(
      f'{name:<16}{row["bytes"] / 1e9:10.4f}{said:>17}'
      f'{1e3 * row["seconds"]:11.3f}{row["bytes_per_second"] / 1e9:10.1f}'
      f'{row["share"]:9.1%}'
    )
  lines += ['', 'on one worker     lion, ms  distributed, ms      ratio']
  for name in ('update', 'step'):
    if name not in figures:  # it failed before
      continue
    row = figures[name]
    lines.append(
      f'{name:<16}{1e3 * row["seconds"]["lion"]:10.3f}'
      f'{1e3 * row["seconds"]["distributed_lion"]:17.3f}{row["ratio"]:11.4f}'
    )
    temporaries = row['temporary_bytes']
    lines.append(
      f'  temporary, MB {temporaries["lion"] / 1e6:10.1f}'
      f'{temporaries["distributed_lion"] / 1e6:17.1f}'
    )
  peak = figures.get('peak_bytes')
  lines += [
    '',
    'peak memory of all: '
    + ('not told by this device' if peak is None else f'{peak / 1e9:.2f} GB'),
  ]
  return '\n'.join(lines)


def main(argv: Sequence[str]) -> None:
  """Measures, prints and writes, each time that something is measured."""
  entry.require_flags_only(argv)
  entry.quiet()
  file = outputs.file(_JSON.value, '--json')
  device = _device(_PLATFORM.value)
  size = _size()
  figures = {
    **size._asdict(),
    'model': dataclasses.asdict(size.model),
    'voters': _VOTERS.value,
    'repeats': _REPEATS.value,
    'seed': _SEED.value,
    'versions': provenance.versions()
    | {'backend': device.platform, 'device': device.device_kind},
    'parts': {},
  }
  try:
    with jax.default_device(device):
      for _ in _stages(figures, size, device):
        peak = (device.memory_stats() or {}).get('peak_bytes_in_use')
        figures['peak_bytes'] = peak
        if file:
          outputs.write(file, json.dumps(figures, indent=2) + '\n')
  finally:
    if figures['parts']:
      print(table(figures))


def _stages(
  figures: dict[str, Any], size: Size, device: jax.Device
) -> Iterator[None]:
  """Adds figures, in pauses between which they can be saved."""
  repeats, seed = _REPEATS.value, _SEED.value
  vote_parts.check(seed)
  _require_memory(size.parameters, device)
  fewer = f'--parameters={size.parameters // 2}, or fewer'
  for name, part in vote_parts.parts(size.parameters, _VOTERS.value).items():
    with _enough_memory(f'{name} of {size.parameters:,} parameters', fewer):
      figures['parts'][name] = vote_parts.measure(
        part, repeats, size.calls, seed
      )
    yield
  params = decoder.init(size.model, jax.random.key(seed))
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.make_mesh((1,), (lion_steps.AXIS,), auto, devices=[device])
  with _enough_memory('The update', 'a device with more of it'):
    figures['update'] = lion_steps.measure_update(
      params, mesh, repeats, size.calls
    )
  yield
  tokens_BxL = jax.random.randint(
    jax.random.key(seed),
    (size.batch, size.model.context + 1),
    0,
    size.model.vocab_size,
  )
  smaller = f'--batch={max(1, size.batch // 2)}, or a smaller --context'
  with _enough_memory(f'A step with a batch of {size.batch}', smaller):
    figures['step'] = lion_steps.measure_step(
      size.model, params, tokens_BxL, mesh, repeats, size.calls
    )
  yield


def _size() -> Size:
  """The size of the platform, with what flags say instead."""
  size = SIZES[_PLATFORM.value]
  model = dataclasses.replace(
    size.model, context=_CONTEXT.value or size.model.context
  )
  return size._replace(
    parameters=_PARAMETERS.value or size.parameters,
    model=model,
    batch=_BATCH.value or size.batch,
  )


def _device(platform: str) -> jax.Device:
  try:
    return jax.devices(platform)[0]
  except RuntimeError as error:
    there = ', '.join(sorted({device.platform for device in jax.devices()}))
    raise errors.UserError(
      f'JAX sees no {platform} here, only {there}. With an NVIDIA GPU, install'
      " JAX with CUDA (pip install 'jax[cuda13]'). --platform=cpu tries this"
      ' script in small.'
    ) from error


def _require_memory(parameters: int, device: jax.Device) -> None:
  """Before anything is measured."""
  there = (device.memory_stats() or {}).get('bytes_limit')
  if there is not None and there < _BYTES * parameters:
    fit = there // _BYTES // 10**6 * 10**6
    raise errors.UserError(
      f'{parameters:,} parameters need {_BYTES * parameters / 1e9:.1f} GB of'
      f' memory, and JAX has {there / 1e9:.1f} GB of this device. Pass'
      f' --parameters={fit}; or set XLA_PYTHON_CLIENT_MEM_FRACTION=0.95, by'
      ' default it takes three quarters.'
    )


@contextlib.contextmanager
def _enough_memory(what: str, instead: str) -> Iterator[None]:
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    raise errors.UserError(
      f'{what} does not fit into the memory of this device. Pass {instead}.'
    ) from error


if __name__ == '__main__':
  entry.run(main)
