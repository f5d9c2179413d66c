"""Makes token files, for `--config.data.path`, from text of any size.

    python -m experiments.make_token_files --from=english --tokenizer=gpt2 \
      --out=data/english
    python -m experiments.make_token_files --from=tfds:openwebtext \
      --tokenizer=gpt2 --out=data/openwebtext

Sources: the corpora that are installed, files or folders of .txt and .jsonl
(see `experiments.data.documents`), and prepared sets of TFDS (see
`experiments.prepare_tfds`). The held-out documents are those of `text.load`.
"""

from collections.abc import Sequence

from absl import flags

from experiments import entry
from experiments.data import documents, token_writer, tokenizers

_FROM = flags.DEFINE_string('from', None, 'Source of the text.', required=True)
_TOKENIZER = flags.DEFINE_enum(
  'tokenizer', 'gpt2', sorted(tokenizers.TOKENIZERS), 'What makes the ids.'
)
_OUT = flags.DEFINE_string('out', None, 'Folder of the files.', required=True)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', '', 'Where TFDS has its data; empty: where it has it by default.'
)
_OVERWRITE = flags.DEFINE_boolean(
  'overwrite', False, 'Replace token files that are in the folder.'
)


def main(argv: Sequence[str]) -> None:
  """Reads the flags and makes the files."""
  entry.require_flags_only(argv)
  entry.quiet()
  meta = token_writer.make(
    documents.read(_FROM.value, _DATA_DIR.value),
    _TOKENIZER.value,
    _OUT.value,
    _OVERWRITE.value,
  )
  for name, file in meta['files'].items():
    print(f'{name}: {file["tokens"]} tokens, sha256 {file["sha256"]}')


if __name__ == '__main__':
  entry.run(main)
