"""Out of the chat: to the clipboard, to a file."""

import asyncio

from app.copied_text import code_blocks, conversation_text, details_of, export_to
from app.errors import UsageError
from app.paths import data_dir
from app.tui import clipboard
from app.tui.screens.chat_frame import ChatFrame


class CopyActions(ChatFrame):
    """Copying and exporting."""

    def action_copy_reply(self) -> None:
        """Copy the message under the cursor, or the last reply."""
        node = self._node_at_cursor() or self._reply()
        if node is None or not node.text:
            self.note("There is no reply to copy yet.")
        else:
            self._copy(node.text, "Reply" if node.role == "assistant" else "Message")

    async def action_copy_code(self, argument: str = "") -> None:
        """Copy the fence under the cursor; else the last one, or the one with that number."""
        at = self.view.at_cursor
        if at is not None and at[1].kind == "code" and not argument:
            self._copy(at[1].source, "Code")
            return
        node = self._reply()
        blocks = await asyncio.to_thread(code_blocks, node.text) if node is not None else []  # it may be a long one
        if not blocks:
            self.note("There is no code block in this reply.")
            return
        number = int(argument) if argument.isascii() and argument.isdigit() else len(blocks) if not argument else 0
        if not 1 <= number <= len(blocks):
            self.note(f"There are {len(blocks)} code blocks; give a number from 1.")
            return
        self._copy(blocks[number - 1], "Code")

    def action_copy_details(self) -> None:
        """Copy the reply with its question and its figures."""
        node = self._reply()
        if node is None:
            self.note("There is no reply to copy yet.")
            return
        question = next((one for one in reversed(self.conversation.transcript.path(node)) if one.role == "user"), None)
        self._copy(details_of(question, node), "Reply and details")

    def action_copy_chat(self) -> None:
        """Copy the conversation."""
        if self.conversation.transcript.head is None:
            self.note("There is nothing to copy yet.")
            return
        self._copy(conversation_text(self.conversation.transcript.path()), "Conversation")

    async def action_export(self, argument: str = "") -> None:
        """Write the conversation to a file that is not there yet, in the form its name ends in."""
        try:
            path = await asyncio.to_thread(export_to, self.conversation.transcript, argument)
        except UsageError as error:
            self.note(error.hint or f"{error}.", "$warning")  # one line has no room for both
        except OSError as error:
            self.note(f"{error.filename}: {error.strerror or error}", "$error")
        else:
            self.note(f"Written to {path}")

    def _copy(self, text: str, what: str) -> None:
        try:
            copied = clipboard.copy(text, what, self.app.copy_to_clipboard, data_dir())
        except OSError as error:
            self.note(f"{what} could not be copied: {error.strerror or error}", "$error")
            return
        self.note(copied.said)
