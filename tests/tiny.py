"""An experiment that takes seconds, for tests of the training loop."""

from experiments import config, language

_OVERRIDES = {
  'model.num_layers': 1,
  'model.width': 8,
  'model.num_heads': 2,
  'data.context': 8,
  'batch_size': 2,
  'eval_limit': 64,
}
SPEC = 'configs/gpt2_nano.py:smoke'


def load(overrides=(), **arguments):
  """Returns the config, with a round of 3 steps unless told otherwise."""
  arguments = {'sync_every': 3} | arguments
  return config.load(SPEC, _OVERRIDES | dict(overrides), **arguments)


def objective(config, vocab_size=32):
  """Returns the model and the loss of a config, for any vocabulary."""
  return language.NextToken(language.model_config(config, vocab_size))


def flags(overrides=()):
  """The same overrides for a command line."""
  items = (_OVERRIDES | dict(overrides)).items()
  return [f'--config.{field}={value}' for field, value in items]
