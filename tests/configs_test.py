"""Every config can be built, has all fields, and lowers at size.

Nothing is allocated: shapes are lowered for GPUs that are not there.
"""

import jax
import pytest

from experiments import assembly, at_size, config, errors, memory, methods
from tests import tiny

# With workers that divide their batches.
SPECS = [
  'configs/gpt2_nano.py:',
  'configs/gpt2_openwebtext.py:size=small,',
  'configs/gpt2_openwebtext.py:size=medium,',
  'configs/gpt2_openwebtext.py:size=large,',
  'configs/gpt2pp_openwebtext.py:size=350m,',
  'configs/gpt2pp_openwebtext.py:size=760m,rotary,',
  'configs/vit_mnist.py:',
  'configs/vit_cifar10.py:',
  'configs/vit_imagenet.py:variant=S16,',
  'configs/vit_imagenet.py:variant=B16,',
  'configs/llama_finetune.py:',
]
TWO_HOPS = {'all_to_all', 'all_gather'}
# What each kind of method sends; more would be a hidden exchange.
SENT = {
  'adamw': {'all_reduce'},
  'lion': {'all_reduce'},
  'adamw_quantized': TWO_HOPS,
  'distributed_lion_averaged': TWO_HOPS | {'all_reduce'},
  'graddrop': {'all_gather'},
  'deep_gradient_compression': {'all_gather'},
  'local_adamw': {'all_reduce'},
  'slowmo': {'all_reduce'},
  'signed_slowmo': {'all_reduce'},
  'lookahead': {'all_reduce'},
  'diloco': {'all_reduce'},
  'distributed_sign_momentum': {'all_reduce'},
  # Beside the message, scales or rates: a number for each leaf at most.
  'terngrad': TWO_HOPS | {'all_reduce'},
  'distributed_sign_momentum_sharded': TWO_HOPS | {'all_reduce'},
  'distributed_sign_momentum_quantized': TWO_HOPS | {'all_reduce'},
}
FIELDS = set(config.load(SPECS[0]))


def _mesh(workers):
  auto = (jax.sharding.AxisType.Auto,)
  return jax.sharding.AbstractMesh((workers,), ('workers',), auto)


def _sent(experiment):
  lowered = at_size.lower(experiment, _mesh(experiment.workers), 'cuda')
  return at_size.collectives(lowered)


@pytest.mark.parametrize('spec', SPECS)
def test_every_method_can_be_selected(spec):
  for method in methods.METHODS:
    experiment = config.load(spec, method=method)
    assembly.check(experiment)
    assert set(experiment) == FIELDS
    assert experiment.is_locked


@pytest.mark.parametrize('workers', [8, 32])
@pytest.mark.parametrize('spec', SPECS)
def test_lowers_at_size(spec, workers):
  method = 'distributed_lion_majority_vote'
  sent = _sent(config.load(spec, method=method, workers=workers))
  # Whatever the size and the number of leaves.
  assert sent == {'all_to_all': 1, 'all_gather': 1}


@pytest.mark.parametrize('method', methods.METHODS)
def test_sends_what_its_kind_sends(method):
  sent = _sent(tiny.load(method=method, workers=8))
  assert set(sent) == SENT.get(method, TWO_HOPS)


def test_detects_a_hidden_exchange(monkeypatch):
  """Without a copy of its own, a gradient is that of all workers."""
  monkeypatch.setattr(at_size.assembly.rounds.sm, 'as_local', lambda x, _: x)
  experiment = tiny.load(method='distributed_lion_majority_vote', workers=8)
  with pytest.raises((TypeError, ValueError), match='as_local'):
    _sent(experiment)


def test_simulated_workers_send_nothing():
  lowered = at_size.lower(tiny.load(workers=8), None)
  assert at_size.collectives(lowered) == {}
  compiled = lowered.compile()
  assert memory.peak_bytes(compiled) > 0


@pytest.mark.parametrize(
  'spec, message',
  [
    ('configs/gpt2_openwebtext.py:workers=7', 'workers=7 cannot share 480 seq'),
    ('configs/vit_imagenet.py:workers=0', 'workers=0 cannot share 4096 images'),
    ('configs/vit_cifar10.py:workers=0', 'workers must be at least 1'),
    ('configs/gpt2_openwebtext.py:size=xl', 'Unknown size'),
    ('configs/vit_imagenet.py:variant=H14', 'nearest is'),
  ],
)
def test_mistakes(spec, message):
  with pytest.raises(errors.UserError, match=message):
    config.load(spec)
