"""Conversations on disk: one append-only file of JSON lines each, a message tree inside.

`store` has the folder, `transcript` one conversation, `session` what a chat does with it, `reply` how a reply is saved
as it comes; under them `journal` makes lines durable, `lines` and `load` read them as hostile input, `tree` folds them
into messages. `search`, `export` and `replay` read only.
"""

from app.transcripts.records import Node, Run, TranscriptInfo
from app.transcripts.reply import ReplyWriter
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore, user_store
from app.transcripts.transcript import Transcript

__all__ = ["ChatSession", "Node", "ReplyWriter", "Run", "Transcript", "TranscriptInfo", "TranscriptStore", "user_store"]
