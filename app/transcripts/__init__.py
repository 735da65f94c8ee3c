"""Conversations on disk: one append-only file of JSON lines each, a message tree inside.

`records` has what is read out, `store` the folder, `transcript` one conversation, `session` what a chat does with it;
under them `journal` makes lines durable, `lines` reads them as hostile input, `tree` folds them into messages.
"""
