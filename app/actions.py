"""Every action a user can take in the chat, once: bindings, palette, slash menu, help and line mode read this table.

The one thing a reader would get wrong: a key belongs to the place that has the focus. In the box a letter is a letter,
so every action with a letter for a key has a second way, a slash name; and only what makes no sense as a command, such
as breaking a line, has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Scope = Literal["global", "chat", "turn", "find", "panel", "transcripts", "settings", "models", "mirrors"]
"""Where the key is heard: everywhere; on the chat screen; on a turn that has the focus; in the line that finds; on
every screen above the chat; in the list of transcripts; in that of the settings; in that of models; in that of places
for copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something the user can do."""

    id: str
    """Name in the keymap of the settings, and of the method `action_<id>` that does it."""
    title: str
    """What the palette and the help screen call it: begins with a verb."""
    help: str
    """One sentence: what happens."""
    scope: Scope
    keys: tuple[str, ...] = ()
    """Default keys as Textual names them; each can be sent by a plain terminal, or another one here can."""
    slash: str = ""
    """Name after the slash; "" for what only a key can do."""
    argument: str = ""
    """What the slash command takes after its name, as help shows it: "TEXT", "[N]"; "" for nothing."""
    in_palette: bool = True
    """Whether the palette offers it; keys that type or move do not belong there."""

    @property
    def needs_argument(self) -> bool:
        """Whether the slash command means nothing without an argument."""
        return bool(self.argument) and not self.argument.startswith("[")


ACTIONS: tuple[Action, ...] = (
    # everywhere
    Action(
        id="palette", title="Show the palette", scope="global", keys=("ctrl+p",), slash="palette", in_palette=False,
        help="Finds any action by its name.",
    ),
    Action(
        id="help", title="Show the keys", scope="global", keys=("f1", "question_mark"), slash="help",
        help="Lists the keys in force here, and every slash command.",
    ),
    Action(
        id="transcripts", title="Open the transcripts", scope="global", keys=("ctrl+t",), slash="transcripts",
        argument="[TEXT]", help="Lists all conversations, newest first, and searches them.",
    ),
    Action(
        id="resume", title="Resume a conversation", scope="global", slash="resume", argument="ID", in_palette=False,
        help="Opens the conversation with this id, or one that begins so.",
    ),
    Action(
        id="plan", title="Show where the time goes", scope="global", keys=("ctrl+g",), slash="plan",
        help="Shows what lives in memory and on the drives, and what the last turn spent its time on.",
    ),
    Action(
        id="drives", title="Show the drives", scope="global", slash="drives",
        help="Shows each drive's share of the reads, its rate, its queue and its errors.",
    ),
    Action(
        id="mirror", title="Use another drive", scope="global", slash="mirror",
        help="Finds drives that copies of the model could go to, makes them, and checks them.",
    ),
    Action(
        id="settings", title="Change the settings", scope="global", slash="settings", argument="[KEY [VALUE]]",
        help="Shows every setting, its value and where it comes from.",
    ),
    Action(
        id="logs", title="Read the log", scope="global", slash="logs", help="Shows the end of the log file.",
    ),
    Action(
        id="model", title="Choose a model", scope="global", slash="model", argument="[MODEL]",
        help="Looks for checkpoints in the usual places, checks them, and says what speed to expect.",
    ),
    Action(
        id="theme", title="Change the theme", scope="global", slash="theme", argument="[NAME]",
        help="Takes the named theme, or the next one.",
    ),
    Action(
        id="mouse", title="Let go of the mouse", scope="global", slash="mouse",
        help="Leaves the mouse to the terminal, to select text there; again takes it back.",
    ),
    Action(
        id="suspend", title="Suspend to the shell", scope="global", keys=("ctrl+z",), slash="suspend",
        help="Goes to the background; `fg` brings it back. In the box ctrl+z takes back the last edit.",
    ),
    Action(
        id="quit", title="Quit", scope="global", keys=("ctrl+q",), slash="quit",
        help="Ends Artesian; conversation and draft are saved.",
    ),
    # on the chat screen
    Action(
        id="send", title="Send the message", scope="chat", keys=("enter",), in_palette=False,
        help="Sends what is in the box.",
    ),
    Action(
        id="new_line", title="Break the line", scope="chat", keys=("ctrl+j", "shift+enter"), in_palette=False,
        help="Begins a new line in the box.",
    ),
    Action(
        id="stop", title="Stop the reply", scope="chat", keys=("escape",), slash="stop",
        help="Stops reading or answering and keeps what was written; with nothing to stop it leaves the box.",
    ),
    Action(
        id="continue_reply", title="Continue the reply", scope="chat", keys=("ctrl+l",), slash="continue",
        help="Goes on with a reply that was stopped or cut, where it ended.",
    ),
    Action(
        id="regenerate", title="Answer again", scope="chat", keys=("ctrl+r",), slash="regenerate",
        help="Answers the last message once more; the earlier reply stays beside it.",
    ),
    Action(
        id="new_chat", title="Begin a new conversation", scope="chat", keys=("ctrl+n",), slash="new",
        help="Begins an empty conversation; this one stays in the list.",
    ),
    Action(
        id="find", title="Find in the conversation", scope="chat", keys=("ctrl+f",), slash="find", argument="[TEXT]",
        help="Finds text in this conversation.",
    ),
    Action(
        id="editor", title="Edit the draft in $EDITOR", scope="chat", keys=("ctrl+o",), slash="editor",
        help="Opens what is in the box in $VISUAL or $EDITOR.",
    ),
    Action(
        id="previous_block", title="Go to the block above", scope="chat", keys=("ctrl+up",), in_palette=False,
        help="Moves the block cursor up, from the box into the conversation.",
    ),
    Action(
        id="next_block", title="Go to the block below", scope="chat", keys=("ctrl+down",), in_palette=False,
        help="Moves the block cursor down, at last into the box.",
    ),
    Action(
        id="bottom", title="Go to the end", scope="chat", keys=("ctrl+end",), slash="bottom",
        help="Goes to the end of the conversation and follows it again.",
    ),
    Action(
        id="think", title="Set how much it thinks", scope="chat", slash="think", argument="[off|low|high|max|N]",
        help="Sets how much the next replies think before they answer; alone it says how much that is now.",
    ),
    Action(
        id="system", title="Set the system message", scope="chat", slash="system", argument="[TEXT]",
        help="Sets what stands before the conversation, in a new branch; alone it shows it.",
    ),
    Action(
        id="title", title="Rename this conversation", scope="chat", slash="title", argument="[TEXT]",
        help="Gives this conversation a title.",
    ),
    Action(
        id="export", title="Export this conversation", scope="chat", slash="export", argument="[FILE]",
        help="Writes the conversation to a file; .md, .json or .html by its ending.",
    ),
    # on a turn that has the focus; from the box, by slash, on the last one
    Action(
        id="copy_reply", title="Copy the reply", scope="turn", keys=("y",), slash="copy",
        help="Copies the text of the reply, partial ones too.",
    ),
    Action(
        id="copy_code", title="Copy the code block", scope="turn", keys=("c",), slash="code", argument="[N]",
        help="Copies the code block under the cursor; by slash the last one, or number N.",
    ),
    Action(
        id="copy_details", title="Copy with details", scope="turn", keys=("Y",), slash="details",
        help="Copies the reply with its question, settings and figures.",
    ),
    Action(
        id="copy_chat", title="Copy the conversation", scope="turn", keys=("A",), slash="copy-all",
        help="Copies the whole conversation as it is shown.",
    ),
    Action(
        id="edit", title="Edit the message", scope="turn", keys=("e",), slash="edit",
        help="Puts the message into the box; sending makes a branch, and its price is shown.",
    ),
    Action(
        id="previous_sibling", title="Go to the previous branch", scope="turn",
        keys=("left_square_bracket",), slash="previous", help="Shows the earlier message or reply in the same place.",
    ),
    Action(
        id="next_sibling", title="Go to the next branch", scope="turn", keys=("right_square_bracket",), slash="next",
        help="Shows the later message or reply in the same place.",
    ),
    Action(
        id="fold_thinking", title="Fold or open the thinking", scope="turn", keys=("t",), slash="thinking",
        help="Shows or hides what the model thought before the reply.",
    ),
    Action(
        id="raw", title="Show the raw text", scope="turn", keys=("r",), slash="raw",
        help="Shows the reply as the model wrote it, or rendered again.",
    ),
    Action(
        id="find_next", title="Find the next place", scope="turn", keys=("n",), slash="find-next", in_palette=False,
        help="Goes to the next place found.",
    ),
    Action(
        id="find_previous", title="Find the previous place", scope="turn", keys=("N",), slash="find-previous",
        in_palette=False, help="Goes to the previous place found.",
    ),
    # in the line that finds
    Action(
        id="next_place", title="Go to the next place", scope="find", keys=("enter", "down"), in_palette=False,
        help="Goes to the next place found; ctrl+up goes into the conversation, where n and N do the same.",
    ),
    Action(
        id="previous_place", title="Go to the previous place", scope="find", keys=("shift+enter", "up"),
        in_palette=False, help="Goes to the place found before.",
    ),
    Action(
        id="leave_find", title="Leave the line", scope="find", keys=("escape",), in_palette=False,
        help="Stops finding and goes back to the box.",
    ),
    # on every screen above the chat
    Action(
        id="close", title="Go back to the chat", scope="panel", keys=("escape", "q"),
        help="Closes this screen.",
    ),
    # in the list of transcripts
    Action(
        id="open_transcript", title="Resume the conversation", scope="transcripts", keys=("enter",),
        help="Opens the conversation to go on with it.",
    ),
    Action(
        id="search_transcripts", title="Search all conversations", scope="transcripts", keys=("slash", "ctrl+f"),
        help="Searches the text of all conversations as you type.",
    ),
    Action(
        id="rename_transcript", title="Rename the conversation", scope="transcripts", keys=("r",),
        help="Gives the conversation another title.",
    ),
    Action(
        id="delete_transcript", title="Delete the conversation", scope="transcripts", keys=("d", "delete"),
        help="Deletes the conversation; for 30 days it can be brought back.",
    ),
    Action(
        id="undo_delete", title="Bring the deleted one back", scope="transcripts", keys=("u",),
        help="Brings back the conversation that was deleted last.",
    ),
    # in the list of settings
    Action(
        id="edit_setting", title="Change the setting", scope="settings", keys=("enter",),
        help="Asks for another value and writes it to the settings file.",
    ),
    Action(
        id="unset_setting", title="Unset the setting", scope="settings", keys=("d", "delete"),
        help="Takes the setting out of the file, so that its default is in force.",
    ),
    # in the list of models
    Action(
        id="use_model", title="Use this model", scope="models", keys=("enter",),
        help="Loads it now, and at every start from now on.",
    ),
    Action(
        id="name_folder", title="Name another folder", scope="models", keys=("f",),
        help="Asks for a model's folder and checks it.",
    ),
    # in the list of places for copies
    Action(
        id="make_mirror", title="Copy the model there", scope="mirrors", keys=("enter",),
        help="Copies the shards that are read most, reads every copy back, and has later runs read from both.",
    ),
    Action(
        id="measure_place", title="Measure the drive", scope="mirrors", keys=("m",),
        help="Writes half a gigabyte there, reads it past the cache, and removes it again.",
    ),
    Action(
        id="check_mirror", title="Check the copies", scope="mirrors", keys=("v",),
        help="Compares every byte of the copies there with what was copied.",
    ),
    Action(
        id="remove_mirror", title="Remove the copies", scope="mirrors", keys=("d", "delete"),
        help="Takes the copies there away; the model's own files stay.",
    ),
    Action(
        id="pause_work", title="Pause the copying", scope="mirrors", keys=("p",),
        help="Holds the copying up after the block under way; again lets it go on.",
    ),
    Action(
        id="stop_work", title="Stop the work", scope="mirrors", keys=("s",),
        help="Ends measuring, copying or checking; a copy goes on where it was when it is begun again.",
    ),
)  # fmt: skip
"""In the order in which help shows them."""

BY_ID: Mapping[str, Action] = MappingProxyType({action.id: action for action in ACTIONS})

BY_SLASH: Mapping[str, Action] = MappingProxyType({action.slash: action for action in ACTIONS if action.slash})


def of_scope(scope: Scope) -> tuple[Action, ...]:
    """The actions of one scope, in the table's order."""
    return tuple(action for action in ACTIONS if action.scope == scope)
