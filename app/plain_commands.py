"""The slash commands of line mode. What only a screen can do is answered with what to do instead."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app import paths
from app.actions import ACTIONS, Action
from app.copied_text import code_blocks, conversation_text, details_of, export_to, who
from app.editing import edit
from app.errors import UsageError
from app.log_tail import tail
from app.mirror_text import state_text
from app.mirroring import MirrorDesk
from app.model_choice import choose_model, require_folder
from app.private_files import PRIVATE_FILE, write_whole
from app.sanitize import one_line
from app.setting_text import require_known, value_of
from app.settings_edit import edit_settings
from app.settings_view import effective
from app.transcripts.records import Node
from app.transcripts.transcript import Transcript
from app.turn_report import as_text, drive_sections, turn_sections
from app.values import EFFORTS, is_effort, parse_effort

if TYPE_CHECKING:
    from app.plain import PlainChat

NOT_HERE: Mapping[str, str] = {
    "palette": "/help lists the commands.",
    "theme": "Line mode has no colours.",
    "mouse": "Line mode leaves the mouse alone.",
    "suspend": "Ctrl+Z suspends; `fg` brings it back.",
    "stop": "Ctrl+C stops a reply.",
    "bottom": "This is the end.",
    "raw": "Replies are shown as the model wrote them.",
    "find_next": "/find TEXT lists every place.",
    "find_previous": "/find TEXT lists every place.",
}
"""By action id: why there is nothing to do."""

_MOST_LISTED = 20
_LOG_LINES = 40


class Commands:
    """What each command does to a chat: `do_<id>` for the action of that id."""

    def __init__(self, chat: "PlainChat") -> None:
        self._chat = chat

    def run(self, action: Action, argument: str) -> None:
        """Do it. Raises: AppError and OSError for what cannot be done."""
        if action.id in NOT_HERE:
            self._chat.tell(NOT_HERE[action.id])
            return
        getattr(self, f"do_{action.id}")(argument)

    def do_help(self, _: str) -> None:
        """List the commands that do something here."""
        for action in ACTIONS:
            if action.slash and action.id not in NOT_HERE:
                self._chat.tell(f"/{action.slash} {action.argument}".rstrip() + f": {action.help}")
        self._chat.tell("A blank before a slash sends the line to the model.")

    def do_transcripts(self, text: str) -> None:
        """List conversations, those with the words of `text`."""
        infos = self._chat.store.list()
        if text:
            hits = {hit.transcript for hit in self._chat.store.search(text)}
            infos = [info for info in infos if info.id in hits]
        for info in infos[:_MOST_LISTED]:
            when = info.updated.astimezone().strftime("%Y-%m-%d %H:%M")
            self._chat.tell(f"{info.id}  {when}  {info.n_messages:,} messages  {one_line(info.title) or 'no title'}")
        if len(infos) > _MOST_LISTED:
            self._chat.tell(f"and {len(infos) - _MOST_LISTED:,} older ones; /transcripts TEXT searches them")
        if not infos:
            self._chat.tell("There is none with these words." if text else "There are none yet.")

    def do_resume(self, transcript_id: str) -> None:
        """Go on with another conversation."""
        store = self._chat.store
        if store.path_of(transcript_id).stem == self._chat.session.transcript.id:
            self._chat.tell("This is that conversation.")  # opened a second time it would be held by ourselves
            return
        self._switch(store.open(transcript_id))
        session = self._chat.session
        for node in session.transcript.path()[-2:]:
            self._show(node)
        if session.transcript.read_only:
            self._chat.tell(session.transcript.read_only)

    def do_new_chat(self, _: str) -> None:
        """Begin an empty conversation."""
        self._switch(self._chat.store.create())
        self._chat.tell("A new conversation.")

    def do_plan(self, _: str) -> None:
        """Where the time of the last turn went."""
        stats = self._chat.last_turn
        self._chat.tell("No turn has been run yet." if stats is None else as_text(turn_sections(stats)))

    def do_drives(self, _: str) -> None:
        """What each drive gave in the last turn."""
        stats = self._chat.last_turn
        self._chat.tell("No turn has been run yet." if stats is None else as_text(drive_sections(stats)))

    def do_mirror(self, _: str) -> None:
        """What copies of the model there are, and what commands make some."""
        desk = MirrorDesk.of_user(self._chat.choice)
        for state in desk.states():
            self._chat.tell(state_text(state, desk))
        self._chat.tell("`artesian mirror propose` says what copies would buy, `artesian mirror copy` makes them.")

    def do_settings(self, argument: str) -> None:
        """Show the settings, or one; with a value, change it in the file."""
        key, _, value = argument.partition(" ")
        if key:
            require_known(key)
        if value.strip():
            made = edit_settings(paths.settings_file(), {key: value_of(key, value)})  # type: ignore[dict-item]
            self._chat.settings = made
            self._chat.tell(f"{key} is set. What is loaded already changes with the next start.")
            return
        for one in effective(self._chat.settings, self._chat.choice):
            if key in ("", one.key):
                self._chat.tell(f"{one.key} = {one.value} ({one.origin}). {one.about}")

    def do_logs(self, _: str) -> None:
        """The end of the log."""
        self._chat.tell("\n".join(tail(paths.log_file()).splitlines()[-_LOG_LINES:]))

    def do_model(self, folder: str) -> None:
        """Say which model answers, or take another one."""
        chat = self._chat
        if folder:
            choice = choose_model(folder, chat.settings)
            require_folder(choice)
            chat.use_model(choice)
        chat.tell(f"The model is in {one_line(str(chat.choice.folder))} ({chat.choice.origin}).")

    def do_quit(self, _: str) -> None:
        """End."""
        self._chat.is_done = True

    def do_continue_reply(self, _: str) -> None:
        """Go on with the last reply."""
        node = self._reply()
        if node.status not in ("stopped", "cut", "failed"):
            raise UsageError("the last reply is complete", hint="/regenerate answers again.")
        if not (node.text or node.thinking or node.ids):  # it ended before its first token, so it begins now
            self.do_regenerate("")
            return
        self._chat.answer(node, self._chat.session.continue_request(node))

    def do_regenerate(self, _: str) -> None:
        """Answer the last message again."""
        node = self._last("user")
        self._chat.answer(node, self._chat.session.request(node))

    def do_find(self, text: str) -> None:
        """Lines of this conversation with `text` in them."""
        if not text:
            raise UsageError("/find needs TEXT after it")
        n_found = 0
        for number, node in enumerate(self._path(), 1):
            for line in node.text.splitlines():
                if text.casefold() in line.casefold():
                    n_found += 1
                    self._chat.tell(f"{number}, {who(node)}: {one_line(line)}")
        self._chat.tell(f"{n_found:,} found")

    def do_editor(self, _: str) -> None:
        """Write the next message in an editor, and send it."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("there is no terminal to give to an editor")
        text = edit(self._chat.replaces.text if self._chat.replaces else "")
        if text.strip():
            self._chat.say(text)

    def do_think(self, effort: str) -> None:
        """Set or say how much the next replies think."""
        session = self._chat.session
        if effort:
            if not is_effort(effort):
                raise UsageError(f"/think takes {EFFORTS}, not {effort!r}")
            session.effort = parse_effort(effort)
        self._chat.tell(f"Thinking: {'off' if session.effort is None else session.effort}")

    def do_system(self, text: str) -> None:
        """Set what stands before the conversation, in a new branch."""
        chat = self._chat
        if not text:
            found = [node.text for node in self._path() if node.role == "system"] or [chat.session.system]
            chat.tell(found[0] or "There is no system message.")
            return
        chat.session.system, chat.replaces = text, None
        if chat.session.transcript.head is not None:
            chat.session.transcript.add("system", text, None)
        chat.tell("It stands before what you write next.")

    def do_title(self, title: str) -> None:
        """Say or set the title."""
        transcript = self._chat.session.transcript
        if title:
            transcript.rename(title)
        self._chat.tell(one_line(transcript.title) or "It has no title yet.")

    def do_export(self, name: str) -> None:
        """Write the conversation to a file."""
        self._chat.tell(f"Written to {export_to(self._chat.session.transcript, name)}")

    def do_copy_reply(self, _: str) -> None:
        """Write the last reply to a file."""
        self._write("Reply", self._reply().text)

    def do_copy_code(self, number: str) -> None:
        """Write the last code block of the last reply, or number N, to a file."""
        blocks = code_blocks(self._reply().text)
        if not blocks:
            raise UsageError("the last reply has no code block")
        if number and not (number.isascii() and number.isdigit() and 1 <= int(number) <= len(blocks)):
            raise UsageError(f"/code takes a number from 1 to {len(blocks)}, not {number!r}")
        self._write("Code block", blocks[int(number) - 1 if number else -1])

    def do_copy_details(self, _: str) -> None:
        """Write the last question and reply, and how it was made, to a file."""
        reply = self._reply()
        question = None if reply.parent is None else self._chat.session.transcript.node(reply.parent)
        self._write("Reply with details", details_of(question, reply))

    def do_copy_chat(self, _: str) -> None:
        """Write the conversation to a file."""
        self._write("Conversation", conversation_text(self._path()))

    def do_edit(self, _: str) -> None:
        """Have the next line replace the last message."""
        self._chat.replaces = node = self._last("user")
        self._chat.tell(f"The next message replaces this one, in a new branch:\n{node.text}")

    def do_previous_sibling(self, _: str) -> None:
        """Show the reply or message before the last one in its place."""
        self._walk(-1)

    def do_next_sibling(self, _: str) -> None:
        """Show the one after it."""
        self._walk(1)

    def do_fold_thinking(self, _: str) -> None:
        """Show the thinking of later replies, or not."""
        self._chat.shows_thinking = not self._chat.shows_thinking
        self._chat.tell("Thinking is shown." if self._chat.shows_thinking else "Thinking is not shown.")

    def _switch(self, transcript: Transcript) -> None:
        chat = self._chat
        chat.leave()
        chat.session = chat.session_of(transcript, chat.choice)
        chat.replaces = None

    def _path(self) -> Sequence[Node]:
        return self._chat.session.transcript.path()

    def _last(self, role: str) -> Node:
        found = [node for node in self._path() if node.role == role]
        if not found:
            what = "message" if role == "user" else "reply"
            raise UsageError(f"there is no {what} yet")
        return found[-1]

    def _reply(self) -> Node:
        return self._last("assistant")

    def _walk(self, step: int) -> None:
        transcript = self._chat.session.transcript
        for node in reversed(self._path()):
            siblings = [sibling.id for sibling in transcript.siblings(node)]
            if len(siblings) > 1:
                at = siblings.index(node.id) + step
                if not 0 <= at < len(siblings):
                    raise UsageError("there is no branch further on" if step > 0 else "there is no branch before it")
                transcript.select(siblings[at])
                self._chat.tell(f"branch {at + 1} of {len(siblings)}")
                for shown in transcript.path()[-2:]:
                    self._show(shown)
                return
        raise UsageError("there is one branch only", hint="/regenerate and /edit make others.")

    def _show(self, node: Node) -> None:
        self._chat.tell(f"{who(node)}:\n{node.text}")

    def _write(self, what: str, text: str) -> None:
        path = self._chat.out_folder / "clipboard.txt"
        write_whole(path, text, mode=PRIVATE_FILE)
        self._chat.tell(f"{what} written to {path}, {len(text):,} characters.")
