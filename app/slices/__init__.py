"""Synthetic checkpoints of released widths, to measure a machine without the 510 GB.

`geometry` says what one has, `tokenizer` fills up a vocabulary, `payload` draws finite bytes, `write` puts it on disk.
"""
