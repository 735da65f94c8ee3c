"""The process that test_kill.py kills: it chats, and says what it was told is saved."""

import json
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from app.transcripts.reply import ReplyWriter
from app.transcripts.store import TranscriptStore
from tests.app.transcripts.chats import chat


def chat_for_ever(folder: Path, to_parent: Connection) -> None:
    """Go on with the conversation in `folder`, telling of each message that is new or has grown."""
    store = TranscriptStore(folder)
    transcript = store.latest() or store.create()
    # What was there before is no news: telling of it again would take up all that the other side waits for.
    told: dict[str, object] = {node.id: node for node in transcript.nodes()}

    def tell(writer: ReplyWriter | None) -> None:
        for node in transcript.nodes():
            if writer is not None and node.status == "growing" and writer.saved_tokens < len(node.ids):
                node = replace(node, ids=node.ids[: writer.saved_tokens], text="")
            if told.get(node.id) != node:
                told[node.id] = node
                to_parent.send_bytes(json.dumps([node.id, node.text, node.ids, node.status]).encode())

    while True:
        for _ in chat(transcript, tell):
            pass
