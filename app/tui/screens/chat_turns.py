"""Turns on the screen: prices, sending, the engine's events, answering again, branches."""

import asyncio
import time
from collections.abc import Callable, Sequence

from textual import on

from app.backends.base import PromptCost, TurnRequest
from app.errors import AppError
from app.host import HostEvent, Measured, Opened, OpenFailed, Opening, TurnFailed, Warmed, Warming
from app.report import said
from app.sanitize import visible
from app.transcripts.records import Node
from app.transcripts.session import ChatSession
from app.tui.figures import loading_text, price
from app.tui.screens.chat_frame import ChatFrame, Priced
from app.tui.widgets.page import MUTED
from app.tui.widgets.prompt import Prompt
from app.tui.widgets.turn import ReplyRows
from engine.errors import PromptError, Stopped
from engine.events import LoadProgress, Notice, TurnDone

PRICE_AFTER_S = 0.3
"""The draft is measured this long after the last key."""

DEAR_S = 10.0
"""Reading again that takes longer is asked about first."""

STATUS_EVERY_S = 1.0
"""The status line changes this often while a turn runs: faster is not read, and the box is painted with it."""


class TurnActions(ChatFrame):
    """Everything that asks the engine for something, or shows what it gave."""

    def take(self, events: Sequence[HostEvent]) -> None:
        """Show what the engine did since the last call."""
        conversation = self.conversation
        touched = False
        still = conversation.running.rows.n_still_rows if conversation.running is not None else 0
        for event in events:
            self._take_state(event)
            if isinstance(event, Notice):
                still = 0  # it stands before the reply
            running = conversation.running
            if running is None:
                continue
            touched = True
            if conversation.take(event):
                still = 0
                self._turn_ended(running.rows, event)
            elif running.repeats:
                running.repeats = False
                self.note("The reply repeats itself. Esc stops it.", "$warning")
        if any(isinstance(event, Notice) for event in events):
            self.look_again()
        if touched:
            self.view.changed(max(len(self.view.messages) - 1, 0), still)
        now = time.monotonic()
        if events and (conversation.running is None or now >= self._status_due):
            self._status_due = now + STATUS_EVERY_S
            self.show_status()

    def _take_state(self, event: HostEvent) -> None:
        match event:
            case Opening():
                self._is_open, self._model_state = False, "opening the model"
            case LoadProgress():
                self._model_state = loading_text(event)
            case Opened():
                self._is_open, self._model_state = True, "ready"
            case OpenFailed(error=error):
                self._is_open, self._model_state = False, "not loaded"
                if self.conversation.running is None and not isinstance(error, Stopped):
                    self.note(said(error), "$error")
            case Warming():
                self._model_state = "warming"
            case Warmed():
                self._model_state = "ready"
            case Measured():
                self._measured(event)
            case Notice() if (running := self.conversation.running) is None or not running.has_begun:
                self.notify(visible(event.text), severity="warning", markup=False, timeout=12)
            case TurnDone() | TurnFailed() if self._left:
                self.close_transcript(self._left.pop(0))  # turns end in the order in which they were asked for
            case _:
                pass

    def _turn_ended(self, rows: ReplyRows, event: HostEvent) -> None:
        if isinstance(event, TurnDone):
            self.artesian.last_turn = event.stats
        self.note("")
        self.look_again()
        self._show_heading()
        if rows.is_long:
            self.run_worker(self._settle(rows), exit_on_error=False)
        if isinstance(event, TurnFailed) and isinstance(event.error, PromptError) and not self.prompt.text.strip():
            transcript = self.conversation.transcript
            asked = transcript.path(rows.node_id)[-2:-1]
            if asked and asked[0].role == "user":  # it cannot be run as it is: back into the box, to be changed
                self._edit(asked[0])
        elif self.prompt.text.strip():
            self._price_soon()

    async def _settle(self, rows: ReplyRows) -> None:
        """Put the parts of a long reply together, aside."""
        flows = await asyncio.to_thread(rows.settled)
        running = self.conversation.running
        if running is not None and running.rows is rows:
            return  # it is gone on with, and grows again
        if rows.take_settled(flows) and rows in self.view.messages:
            self.look_again()
            self.view.changed(self.view.messages.index(rows))

    def check_saved(self) -> None:
        """Say when the conversation is not saved, and try again; show what another window has added to it."""
        transcript = self.conversation.transcript
        if transcript.problem is not None:
            self.note(transcript.problem, "$warning")
            self._shows_problem = True
            self.run_worker(transcript.flush, thread=True, group="retry", exclusive=True, exit_on_error=False)
        elif self._shows_problem:
            self.note("")
        if transcript.read_only and not self._takes_added:
            self._takes_added = True
            self.run_worker(self._take_added(), exit_on_error=False)
        self.show_status()

    async def _take_added(self) -> None:
        """Show what another window has added, where the user is; read aside."""
        conversation = self.conversation
        try:
            if await asyncio.to_thread(conversation.refresh) and conversation is self.conversation:
                self.reload(stays=True)
        finally:
            self._takes_added = False

    @on(Prompt.Submitted)
    async def _submitted(self, event: Prompt.Submitted) -> None:
        event.stop()
        conversation = self.conversation
        if conversation.running is not None:
            self._give_back(event.text, "A reply is being written. Esc stops it.")
            return
        if self._refused is not None and self._refused[0] == event.text:
            self._give_back(event.text, self._refused[1])
            return
        editing, self._editing = self._editing, None
        session = conversation.session
        try:
            if editing is not None:
                node = await asyncio.to_thread(session.edit, editing, event.text)
            else:
                node = await asyncio.to_thread(session.add_user, event.text)
        except AppError as error:
            self._editing = editing
            self._give_back(event.text, said(error))
            return
        if editing is not None and self._set_aside:
            self.prompt.restore(self._set_aside)
        self._set_aside = ""
        self._answer(node, session.request(node))

    def _give_back(self, text: str, why: str) -> None:
        """Put what could not be sent back into the box."""
        self.prompt.restore(text)
        self._given_back = self.prompt.text
        self._drop_price()  # it would take the place of this
        self.note(why, "$warning")

    def _answer(self, node: Node, request: TurnRequest) -> None:
        """Run a turn: a reply under `node`, or more of it."""
        self._n_turns += 1
        self._armed = None
        self.note("")
        try:
            self.conversation.begin(self.artesian.host, self._n_turns, node, request, self.view.text_cells)
        except AppError as error:
            self.note(said(error), "$error")
            return
        self.reload()
        if self._context_tokens is None:
            self._measure(request, lambda cost: None)

    @on(Prompt.Changed)
    def _draft_changed(self, event: Prompt.Changed) -> None:
        event.stop()
        self.typed_s = time.monotonic()
        if self._given_back is not None and event.text in (self._given_back, ""):
            return  # what is said of it stays; the box was emptied before it was given back
        self._given_back = None
        if not _is_draft(event.text):
            if self._priced is not None and self._priced.draft is not None:
                self._drop_price()
            if self._shows_price:  # anything else that is said there is not about the draft
                self.note("")
            return
        self._armed = None
        self._price_soon()

    def _drop_price(self) -> None:
        """Nothing comes of a price that is under way, nor of one that is about to be asked for."""
        self._ticket += 1
        self._priced = None
        if self._price_timer is not None:
            self._price_timer.stop()

    def take_model(self, defaults: ChatSession) -> None:
        """Another model answers from now on, as `defaults` would: what was measured of the old one is no more."""
        self.conversation.session.take_defaults(defaults)
        self._refused = self._context_tokens = self._armed = None
        self._drop_price()
        self._model_ticket = self._ticket
        if self.conversation.transcript.head is None and self.conversation.running is None:
            self.reload()  # it says whose chat this is
        self._show_heading()
        self.show_status()
        if self.prompt.text.strip():
            self._price_soon()

    def _price_soon(self) -> None:
        if self._price_timer is not None:
            self._price_timer.stop()
        self._price_timer = self.set_timer(PRICE_AFTER_S, self._price_draft)

    def _price_draft(self) -> None:
        text, editing = self.prompt.text, self._editing
        if not _is_draft(text):
            return
        if self._priced is not None and self._priced.draft is None:
            self._price_soon()  # an action waits for its own price
            return
        transcript = self.conversation.transcript
        parent = transcript.head
        if editing is not None:
            parent = transcript.node(editing.parent) if editing.parent is not None else None
        what = "edited: " if editing is not None else ""
        request = self.conversation.draft_request(text, parent)
        self._measure(request, lambda cost: self._show_price(cost, what), draft=text)

    def _show_price(self, cost: PromptCost, what: str) -> None:
        state = "warm" if cost.reused_tokens else "cold" if self._is_open else "the model is not loaded yet"
        self.note(f"{price(cost, what=what)} | {state}", MUTED)
        self._shows_price = True

    def _measure(self, request: TurnRequest, take: Callable[[PromptCost], None], *, draft: str | None = None) -> None:
        self._ticket += 1
        self._priced = Priced(self._ticket, draft, take)
        self.artesian.host.measure(self._ticket, request)

    def _measured(self, event: Measured) -> None:
        if event.cost is not None and event.ticket > self._model_ticket:
            self._context_tokens = event.cost.context_tokens
        priced = self._priced
        if priced is None or event.ticket != priced.ticket or event.ticket != self._ticket:
            return
        self._priced = None
        if event.cost is None:
            assert event.error is not None, "no cost, so something kept it from being known"
            why = said(event.error)
            is_for_good = isinstance(event.error, PromptError)  # a drive may come back
            self._refused = (priced.draft, why) if priced.draft is not None and is_for_good else None
            self.note(why, "$warning")
            return
        self._refused = None
        priced.take(event.cost)

    def _dear(self, action: str, node: Node, request: TurnRequest, what: str) -> None:
        """Run a turn that reads again, at once if that is quick, else when it is asked for a second time."""
        if self._armed == (action, node.id):
            self._answer(node, request)
            return

        def priced(cost: PromptCost) -> None:
            if self.conversation.running is not None:
                return
            if cost.expected_s is None or cost.expected_s < DEAR_S:
                self._answer(node, request)
                return
            self._armed = (action, node.id)
            self.note(f"{what}: {price(cost)}. The same again does it.", "$warning")

        self._measure(request, priced)

    def action_continue_reply(self) -> None:
        """Go on with the last reply."""
        node = self.conversation.transcript.head
        if self._is_busy():
            return
        if node is None:
            self.note("There is no reply to go on with.")
            return
        if node.role != "assistant" or not (node.ids or node.text):
            self.action_regenerate()
            return
        if node.status == "complete":
            self.note("The reply is complete.")
            return
        self._dear("continue", node, self.conversation.session.continue_request(node), "Go on")

    def action_regenerate(self) -> None:
        """Answer a message once more."""
        if self._is_busy():
            return
        node = self._message_of_user()
        if node is None:
            self.note("There is nothing to answer yet.")
            return
        self._dear("regenerate", node, self.conversation.session.request(node), "Answer again")

    def action_edit(self) -> None:
        """Put a message into the box, to be sent as a sibling."""
        node = self._message_of_user()
        if self._is_busy():
            return
        if node is None:
            self.note("There is no message to edit.")
            return
        self._edit(node)
        self.note("Editing: Enter sends it as a branch, Esc leaves it.")

    def _edit(self, node: Node) -> None:
        if self._editing is None:
            self._set_aside = self.prompt.text
        self._editing = node
        self.view.leave_cursor()
        self.prompt.set_text(node.text)
        self.set_focus(self.prompt.editor)

    def action_previous_sibling(self) -> None:
        """Show the branch before."""
        self._walk(-1)

    def action_next_sibling(self) -> None:
        """Show the branch after."""
        self._walk(1)

    def _walk(self, step: int) -> None:
        if self._is_busy():
            return
        transcript = self.conversation.transcript
        nodes = transcript.path()
        here = self._node_at_cursor()
        candidates = [here] if here is not None else list(reversed(nodes))
        node = next((one for one in candidates if len(transcript.siblings(one)) > 1), None)
        if node is None:
            self.note("There is no other branch here.")
            return
        siblings = transcript.siblings(node)
        index = [one.id for one in siblings].index(node.id) + step
        if not 0 <= index < len(siblings):
            self.note(f"This is the {'first' if step < 0 else 'last'} of {len(siblings)}.")
            return
        transcript.select(siblings[index])
        self._refused = self._given_back = None  # behind this branch it may fit
        self._drop_price()
        self.reload()
        self.note(f"Branch {index + 1} of {len(siblings)}.")


def _is_draft(text: str) -> bool:
    """Whether it is about to be sent, and not a command."""
    return bool(text.strip()) and not text.startswith("/")
