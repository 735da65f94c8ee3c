"""Conversations on disk: one append-only file of JSON lines each, a message tree inside.

`store` has the folder, `transcript` one conversation, `session` what a chat does with it, `reply` how a reply is saved
as it comes; under them `journal` makes lines durable, `lines` and `load` read them as hostile input, `tree` folds them
into messages. `search`, `export` and `replay` read only.

What is on the drive when: a message of the user, a title and a change of branch when the call returns; a reply as it
grows every half second or 64 tokens, and when it ends. The file and its folder's entry are synced before the first
message counts as saved. What cannot be saved stays in memory, `Transcript.problem` says so, and every later write, or
`Transcript.flush`, saves it too.
"""

from app.transcripts.records import Node, Run, TranscriptInfo
from app.transcripts.reply import ReplyWriter
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore, user_store
from app.transcripts.transcript import Transcript

__all__ = ["ChatSession", "Node", "ReplyWriter", "Run", "Transcript", "TranscriptInfo", "TranscriptStore", "user_store"]
