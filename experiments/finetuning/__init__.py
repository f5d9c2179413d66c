"""Finetuning: given weights, and questions to ask the model that comes out."""
