"""Weights from files and back: the same logits, nothing lost, clear errors."""

import importlib.util
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from experiments import errors
from experiments.finetuning import weights
from experiments.models import decoder, gpt2, llama
from tests import hugging_face

IDS = np.random.default_rng(5).integers(0, 19, (3, 12))
TIED = hugging_face.LLAMA | {'tie_word_embeddings': True}
MODELS = {'gpt2': hugging_face.GPT2, 'llama': hugging_face.LLAMA, 'tied': TIED}


def _write(folder, fields, tensors, files=1):
  """Writes a model as `save_pretrained` does."""
  (folder / 'config.json').write_text(json.dumps(fields))
  if files == 1:
    safetensors_numpy.save_file(tensors, folder / 'model.safetensors')
    return
  where = {}
  for i, names in enumerate(np.array_split(list(tensors), files), 1):
    file = f'model-{i:05}-of-{files:05}.safetensors'
    part = {str(name): tensors[name] for name in names}
    safetensors_numpy.save_file(part, folder / file)
    where |= dict.fromkeys(part, file)
  index = json.dumps({'metadata': {}, 'weight_map': where})
  (folder / 'model.safetensors.index.json').write_text(index)


def _logits(folder, **changes):
  config = weights.decoder_config(folder, **changes)
  params = weights.load(folder, config)
  return np.asarray(decoder.apply(config, params, IDS))


def _reference(fields, tensors):
  return np.stack([hugging_face.logits(fields, tensors, ids) for ids in IDS])


@pytest.mark.parametrize('files', [1, 3])
@pytest.mark.parametrize('scan_layers', [False, True])
@pytest.mark.parametrize('name', MODELS)
def test_logits_are_those_of_hugging_face(name, scan_layers, files, tmp_path):
  fields = MODELS[name]
  tensors = hugging_face.tensors(fields)
  _write(tmp_path, fields, tensors, files)
  found = _logits(tmp_path, scan_layers=scan_layers)
  expected = _reference(fields, tensors)
  assert expected.std() > 0.5
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('dtype', [ml_dtypes.bfloat16, np.float16])
def test_sixteen_bits_become_float32(dtype, tmp_path):
  tensors = hugging_face.tensors(hugging_face.LLAMA)
  tensors = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
  _write(tmp_path, hugging_face.LLAMA, tensors)
  params = weights.load(tmp_path, weights.decoder_config(tmp_path))
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {
    np.dtype(np.float32)
  }
  np.testing.assert_allclose(
    _logits(tmp_path),
    _reference(hugging_face.LLAMA, tensors),
    rtol=1e-4,
    atol=1e-4,
  )


def test_old_files_of_gpt2_have_other_names_and_masks(tmp_path):
  tensors = hugging_face.tensors(hugging_face.GPT2)
  old = {k.removeprefix('transformer.'): v for k, v in tensors.items()}
  old['h.0.attn.bias'] = np.tri(12, dtype=np.float32)[None, None]
  old['h.0.attn.masked_bias'] = np.float32([-1e4])
  old['lm_head.weight'] = old['wte.weight']
  _write(tmp_path, hugging_face.GPT2, old)
  expected = _reference(hugging_face.GPT2, tensors)
  np.testing.assert_allclose(_logits(tmp_path), expected, rtol=1e-4, atol=1e-4)
  old['lm_head.weight'] = old['wte.weight'] + 1
  _write(tmp_path, hugging_face.GPT2, old)
  with pytest.raises(errors.UserError, match='differs from wte.weight'):
    _logits(tmp_path)


@pytest.mark.parametrize('file_bytes', [2**30, 3000])
@pytest.mark.parametrize('scan_layers', [False, True])
@pytest.mark.parametrize('name', MODELS)
def test_what_is_saved_is_loaded_bit_for_bit(
  name, scan_layers, file_bytes, tmp_path
):
  first, second = tmp_path / 'first', tmp_path / 'second'
  first.mkdir()
  tensors = hugging_face.tensors(MODELS[name])
  _write(first, MODELS[name], tensors)
  config = weights.decoder_config(first, scan_layers=scan_layers)
  params = weights.load(first, config)
  weights.save(params, config, second, file_bytes)
  files = sorted(second.glob('*.safetensors'))
  assert (len(files) > 1) == (file_bytes < 2**30)
  # The very tensors of the beginning, too.
  written = {}
  for file in files:
    written |= safetensors_numpy.load_file(file)
  assert sorted(written) == sorted(tensors)
  for key, tensor in tensors.items():
    np.testing.assert_array_equal(written[key], tensor)
  assert weights.decoder_config(second, scan_layers=scan_layers) == config
  again = weights.load(second, config)
  jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.parametrize('scan_layers', [False, True])
@pytest.mark.parametrize('name', MODELS)
def test_parameters_are_as_init_makes_them(name, scan_layers, tmp_path):
  _write(tmp_path, MODELS[name], hugging_face.tensors(MODELS[name]))
  config = weights.decoder_config(tmp_path, scan_layers=scan_layers)
  new = decoder.init(config, jax.random.key(0))
  read = weights.load(tmp_path, config)
  assert jax.tree.map(jnp.shape, read) == jax.tree.map(jnp.shape, new)


def _without(tensors):
  del tensors['model.layers.1.mlp.up_proj.weight']


def _more(tensors):
  tensors['model.layers.2.mlp.up_proj.weight'] = np.zeros((20, 16), np.float32)


def _turned(tensors):
  name = 'model.layers.0.mlp.up_proj.weight'
  tensors[name] = np.ascontiguousarray(tensors[name].T)


def _integers(tensors):
  tensors['model.norm.weight'] = np.ones(16, np.int8)


@pytest.mark.parametrize(
  'change, message',
  [
    (_without, r'layers.1.mlp.up_proj.weight \(20, 16\) is missing'),
    (_more, r'layers.2.mlp.up_proj.weight \(20, 16\) is not part of'),
    (_turned, r'layers.0.mlp.up_proj.weight is \(16, 20\), not \(20, 16\)'),
    (_integers, 'norm.weight is of type I8. Allowed: F32, F16, BF16'),
  ],
)
def test_wrong_tensors_are_named(change, message, tmp_path):
  tensors = hugging_face.tensors(hugging_face.LLAMA)
  change(tensors)
  _write(tmp_path, hugging_face.LLAMA, tensors)
  with pytest.raises(errors.UserError, match=message):
    _logits(tmp_path)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'model_type': 'mamba'}, "model_type 'mamba'.*Allowed: gpt2, llama"),
    ({'attention_bias': True}, 'attention_bias=True is not supported'),
    ({'hidden_act': 'gelu'}, 'hidden_act=gelu is not.*Allowed: silu'),
    ({'head_dim': 8}, 'head_dim=8 is not supported'),
    (
      {'rope_scaling': {'type': 'linear', 'factor': 2}},
      'rotary positions are not supported.*linear',
    ),
    (
      {'rope_parameters': {'rope_type': 'llama3', 'rope_theta': 5e5}},
      'rotary positions are not supported.*llama3',
    ),
    ({'hidden_size': '16'}, 'is not the config of a model'),
  ],
)
def test_models_that_are_not_ours_are_named(changes, message, tmp_path):
  (tmp_path / 'config.json').write_text(
    json.dumps(hugging_face.LLAMA | changes)
  )
  with pytest.raises(errors.UserError, match=message):
    weights.decoder_config(tmp_path)


def test_newer_files_have_a_table_of_rotary_positions(tmp_path):
  table = {'rope_type': 'default', 'rope_theta': 77.0}
  fields = hugging_face.LLAMA | {'rope_parameters': table}
  (tmp_path / 'config.json').write_text(json.dumps(fields))
  assert weights.decoder_config(tmp_path).rope_theta == 77.0


@pytest.mark.parametrize('context', [5, 12])
def test_rotary_positions_may_be_fewer(context, tmp_path):
  _write(tmp_path, hugging_face.LLAMA, hugging_face.tensors(hugging_face.LLAMA))
  weights.load(tmp_path, weights.decoder_config(tmp_path, context=context))


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'context': 13}, 'context is 13, there it is 12'),
    ({'norm_epsilon': 1e-5}, 'norm_epsilon is 1e-05, there it is 0.001'),
    ({'rope_theta': 1e4}, 'rope_theta is 10000.0, there it is 500.0'),
    ({'num_kv_heads': 4}, 'num_kv_heads is 4, there it is 2'),
  ],
)
def test_a_model_that_is_another_one(changes, message, tmp_path):
  _write(tmp_path, hugging_face.LLAMA, hugging_face.tensors(hugging_face.LLAMA))
  config = weights.decoder_config(tmp_path, **changes)
  with pytest.raises(errors.UserError, match=message):
    weights.load(tmp_path, config)


def test_missing_and_broken_files(tmp_path):
  with pytest.raises(errors.UserError, match='config.json is missing'):
    weights.decoder_config(tmp_path)
  (tmp_path / 'config.json').write_text(json.dumps(hugging_face.LLAMA))
  with pytest.raises(errors.UserError, match='has neither model.safetensors'):
    _logits(tmp_path)
  _write(
    tmp_path, hugging_face.LLAMA, hugging_face.tensors(hugging_face.LLAMA), 2
  )
  part = tmp_path / 'model-00002-of-00002.safetensors'
  part.unlink()
  with pytest.raises(errors.UserError, match='lacks model-00002-of-00002'):
    _logits(tmp_path)
  part.write_bytes(b'nothing like it')
  with pytest.raises(errors.UserError, match='00002.safetensors cannot be'):
    _logits(tmp_path)


@pytest.mark.parametrize(
  'config',
  [
    llama.size('tiny', positions='learned'),
    gpt2.small(num_layers=1, width=8, num_heads=2, num_kv_heads=1),
  ],
)
def test_saving_refuses_what_others_could_not_read(config, tmp_path):
  with pytest.raises(errors.UserError, match='No architecture of Hugging'):
    weights.save({}, config, tmp_path)


def test_saving_leaves_a_model_alone(tmp_path):
  config = llama.size('tiny')
  params = decoder.init(config, jax.random.key(0))
  weights.save(params, config, tmp_path)
  with pytest.raises(errors.UserError, match='has a model already'):
    weights.save(params, config, tmp_path)


def test_saving_where_nothing_can_be(tmp_path):
  (tmp_path / 'file').write_text('in the way')
  with pytest.raises(errors.UserError, match='Cannot make .*--output'):
    weights.save({}, llama.size('tiny'), tmp_path / 'file' / 'weights')


@pytest.mark.skipif(
  not all(map(importlib.util.find_spec, ['torch', 'transformers'])),
  reason='needs torch (of gigabytes) and transformers: pip install both',
)
@pytest.mark.filterwarnings('ignore')  # of what is not ours
@pytest.mark.parametrize('name', MODELS)
def test_logits_are_those_of_transformers(name, tmp_path):
  import torch
  import transformers

  torch.manual_seed(0)
  fields = dict(MODELS[name])
  config = transformers.AutoConfig.for_model(
    fields.pop('model_type'), **fields, initializer_range=0.3
  )
  model = transformers.AutoModelForCausalLM.from_config(config).eval()
  model.save_pretrained(tmp_path / 'theirs')

  def theirs(model):
    with torch.no_grad():
      return model(torch.tensor(IDS)).logits.numpy()

  expected = theirs(model)
  found = _logits(tmp_path / 'theirs')
  print(f'{name}: logits up to {np.abs(expected).max():.3f}, they differ by')
  print(f'at most {np.abs(found - expected).max():.2e}')
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
  # And the other way round.
  ours = weights.decoder_config(tmp_path / 'theirs')
  params = weights.load(tmp_path / 'theirs', ours)
  weights.save(params, ours, tmp_path / 'ours')
  again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'ours')
  np.testing.assert_array_equal(theirs(again.eval()), expected)
