"""Data: texts and images, and which of them a worker sees when."""
