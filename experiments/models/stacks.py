"""Blocks one after the other, written out or scanned over.

Parameters of blocks are nested dicts in one of two layouts: `{'block_0': ...,
'block_1': ...}`, or stacked: the arrays of all blocks lie along a leading axis
and `jax.lax.scan` goes over it, so that a program is as long as one block.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from experiments import errors
from experiments.models import blocks

_Structure = tuple[nnx.GraphDef, nnx.State]


def init(
  config: blocks.BlockConfig, num_layers: int, rngs: nnx.Rngs, stacked: bool
) -> dict[str, Any]:
  """Returns new parameters of blocks, in one layout or the other."""
  params = {
    _name(i): values(blocks.Block(config, rngs)) for i in range(num_layers)
  }
  return _stack(params) if stacked else params


def run(
  config: blocks.BlockConfig,
  params: dict[str, Any],
  x_BxLxD: jax.Array,
  inputs: tuple[Any, Any],
  *,
  scan: bool,
  rematerialise: bool,
) -> jax.Array:
  """Sends the residual stream through all blocks.

  Args:
    config: the one that `params` were made with.
    params: of the blocks, stacked if `scan`.
    x_BxLxD: what goes in.
    inputs: a dropout key and a rate of stochastic depth for each block, along
      a leading axis; None for what is off.
    scan: whether to scan over the blocks rather than to write them all out.
    rematerialise: whether to compute a block anew for its gradient rather
      than to keep what is inside it.

  Returns:
    What comes out, of the same shape.

  Raises:
    UserError: if the layout is not the one that `scan` needs.
  """
  if scan == (_name(0) in params):
    raise errors.UserError(
      f'scan_layers={scan} does not fit the layout of the parameters; stack()'
      ' and unstack() convert them.'
    )

  def block(x_BxLxD, params, inputs):
    return _bind(_block_structure(config), params)(x_BxLxD, *inputs)

  if rematerialise:
    # In a loop nothing can be merged with what the forward pass did.
    block = jax.checkpoint(block, prevent_cse=not scan)
  if scan:
    return jax.lax.scan(
      lambda x_BxLxD, each: (block(x_BxLxD, *each), None),
      x_BxLxD,
      (params, inputs),
    )[0]
  for i in range(len(params)):
    each = jax.tree.map(lambda leaf, i=i: leaf[i], inputs)
    x_BxLxD = block(x_BxLxD, params[_name(i)], each)
  return x_BxLxD


def stack(params: dict[str, Any]) -> dict[str, Any]:
  """Returns the parameters of a model with those of all blocks stacked."""
  return params | {'blocks': _stack(params['blocks'])}


def unstack(params: dict[str, Any]) -> dict[str, Any]:
  """Returns the parameters of a model with each block by itself again."""
  stacked = params['blocks']
  return params | {
    'blocks': {
      _name(i): jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
      for i in range(len(jax.tree.leaves(stacked)[0]))
    }
  }


def decay_mask(params: dict[str, Any]) -> dict[str, Any]:
  """Returns True for what weight decay is meant for: matrices, embeddings."""
  # By name: a stack of biases is a matrix, too.
  return jax.tree.map_with_path(
    lambda path, _: path[-1].key in ('kernel', 'embedding'), params
  )


def values(module: nnx.Module) -> dict[str, Any]:
  """Returns the parameters of a module: nested dicts of arrays."""
  return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def ends(make: Callable[[], nnx.Module], params: dict[str, Any]) -> nnx.Module:
  """Returns the module that has all parameters but those of the blocks."""
  rest = {name: value for name, value in params.items() if name != 'blocks'}
  return _bind(_structure(make), rest)


def keys(key: jax.Array | None, num_layers: int) -> tuple[Any, Any]:
  """Returns a key for what is around the blocks and one for each block."""
  if key is None:
    return None, None
  each = jax.random.split(key, num_layers + 1)
  return each[-1], each[:-1]


def _structure(make: Callable[[], nnx.Module]) -> _Structure:
  """Returns a module without numbers: a graph and a state to fill in."""
  return nnx.split(nnx.eval_shape(make))


@functools.cache
def _block_structure(config: blocks.BlockConfig) -> _Structure:
  return _structure(lambda: blocks.Block(config, nnx.Rngs(0)))


def _bind(structure: _Structure, params: dict[str, Any]) -> nnx.Module:
  graph, state = structure
  state = jax.tree.map(lambda leaf: leaf, state)  # a copy to fill in
  nnx.replace_by_pure_dict(state, params)
  return nnx.merge(graph, state)


def _name(index: int) -> str:
  return f'block_{index}'


def _stack(params: dict[str, Any]) -> dict[str, Any]:
  # In the order of the blocks: 'block_10' sorts before 'block_2'.
  return jax.tree.map(
    lambda *leaves: jnp.stack(leaves),
    *(params[_name(i)] for i in range(len(params))),
  )
