"""`artesian transcripts ...`: the conversations on disk."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from app.errors import UsageError
from app.exits import ExitCode
from app.private_files import PRIVATE_FILE
from app.report import envelope, format_bytes, table
from app.sanitize import one_line, visible
from app.transcripts import export as exporting
from app.transcripts.export import Form, as_json, remarks
from app.transcripts.records import Node
from app.transcripts.store import user_store
from app.transcripts.transcript import Transcript
from app.whole_files import make_file

Json = Annotated[bool, Parameter(name="--json", help="Print the answer as JSON.")]
Id = Annotated[str, Parameter(name="ID", help="Its id, or the beginning of it.")]

_WHO = {"system": "System", "user": "You", "assistant": "Reply"}


def list_all(*, as_json_: Json = False) -> ExitCode:
    """List the conversations, the one changed last first."""
    infos = user_store().list()
    if as_json_:
        data = [
            asdict(info)
            | {"path": str(info.path), "created": info.created.isoformat(), "updated": info.updated.isoformat()}
            for info in infos
        ]
        print(envelope("transcripts", data))
    elif infos:
        rows = [("id", "changed", "messages", "size", "title")]
        for info in infos:
            changed = info.updated.astimezone().strftime("%Y-%m-%d %H:%M")
            size, title = format_bytes(info.size_bytes), one_line(info.title)
            rows.append((one_line(info.id), changed, f"{info.n_messages:,}", size, title))
        print(table(rows, right=(2, 3)))
    else:
        print("artesian: there are no conversations yet", file=sys.stderr)
    return ExitCode.DONE


def show(
    transcript_id: Id,
    /,
    *,
    thinking: Annotated[bool, Parameter(help="Show the reasoning too.")] = False,
    as_json_: Json = False,
) -> ExitCode:
    """Print one conversation, the branch in view; with --json all of it."""
    with user_store().view(transcript_id) as transcript:
        _tell_damage(transcript)
        if as_json_:
            print(envelope("transcript", as_json(transcript)["data"]))
            return ExitCode.DONE
        blocks = [_block(transcript, node, thinking) for node in transcript.path()]
        print("\n\n".join([one_line(transcript.title), *blocks]))
    return ExitCode.DONE


def _block(transcript: Transcript, node: Node, thinking: bool) -> str:
    siblings = [one.id for one in transcript.siblings(node)]
    place = f" ({siblings.index(node.id) + 1} of {len(siblings)})" if len(siblings) > 1 else ""
    lines = [f"{_WHO[node.role]}{place}:"]
    if thinking and node.thinking:
        lines.append("\n".join(f"    {line}" for line in visible(node.thinking).split("\n")))
    lines.append(visible(node.text))
    if said := remarks(node):
        lines.append(f"[{' | '.join(said)}]")
    return "\n".join(lines)


def search(*words: Annotated[str, Parameter(help="Words, or their beginnings.")], as_json_: Json = False) -> ExitCode:
    """Find the messages that have all the words; exit code 1 when there are none."""
    if not "".join(words).strip():
        raise UsageError("there is nothing to look for", hint="Give the words.")
    hits = user_store().search(" ".join(words))
    if as_json_:
        print(envelope("transcript_hits", [asdict(hit) for hit in hits]))
    else:
        for hit in hits:
            print(f"{one_line(hit.transcript)}  {hit.node}  {_WHO[hit.role]}: {one_line(hit.snippet)}")
    return ExitCode.DONE if hits else ExitCode.FAILED


def export(
    transcript_id: Id,
    form: Annotated[Form, Parameter(help="Markdown, JSON with all branches, or a web page.")] = "md",
    /,
    *,
    output: Annotated[Path | None, Parameter(help="A new file to write. [default: stdout]")] = None,
) -> ExitCode:
    """Write one conversation for other programs."""
    with user_store().view(transcript_id) as transcript:
        _tell_damage(transcript)
        text = exporting.export(transcript, form)
    if output is None:
        sys.stdout.write(text)
        return ExitCode.DONE
    try:
        make_file(output, text.encode("utf-8", errors="replace"), mode=PRIVATE_FILE)
    except FileExistsError as error:
        raise UsageError(f"{output} is there already", hint="Give a file that is not.") from error
    return ExitCode.DONE


def rename(transcript_id: Id, /, *title: Annotated[str, Parameter(help="Nothing: its first line.")]) -> ExitCode:
    """Give a conversation a title."""
    user_store().rename(transcript_id, " ".join(title).strip())
    return ExitCode.DONE


def copy(transcript_id: Id, /) -> ExitCode:
    """Make a copy to go on with, also of one that a window has open. Prints its id."""
    with user_store().copy(transcript_id) as copied:
        print(one_line(copied.id))
    return ExitCode.DONE


def delete(transcript_id: Id, /) -> ExitCode:
    """Delete a conversation; for 30 days `undo` brings it back, by what is printed."""
    token = one_line(user_store().delete(transcript_id))
    print(f"artesian: deleted; for 30 days `artesian transcripts undo {token}` brings it back", file=sys.stderr)
    print(token)
    return ExitCode.DONE


def undo(
    token: Annotated[str | None, Parameter(help="What `delete` printed, or an id. [default: the newest]")] = None, /
) -> ExitCode:
    """Bring a deleted conversation back. Prints its id."""
    print(one_line(user_store().undo(token)))
    return ExitCode.DONE


def path(
    transcript_id: Annotated[
        str | None, Parameter(name="ID", help="Its id, or the beginning of it. [default: the folder]")
    ] = None,
    /,
) -> ExitCode:
    """Print where a conversation is, or all of them."""
    store = user_store()
    print(visible(str(store.folder if transcript_id is None else store.path_of(transcript_id))))
    return ExitCode.DONE


def replay(
    transcript_id: Id,
    /,
    *,
    turn: Annotated[int | None, Parameter(help="Number of the reply, from 1. [default: the last]")] = None,
    reread: Annotated[bool, Parameter(help="Read its whole prompt at once; may differ by design.")] = False,
    model: Annotated[str | None, Parameter(help="The model's folder. [default: the one it was made by]")] = None,
    as_json_: Json = False,
) -> ExitCode:
    """Make a reply again and compare its tokens; exit code 1 when they differ.

    The conversation is run as it was, turn by turn, with the seeds and settings it had.
    """
    # Here and not at the top: listing and searching need nothing of what runs a model.
    from app.commands.replaying import run_again

    with user_store().view(transcript_id) as transcript:
        nodes, name = transcript.path(), transcript.id
    return run_again(name, nodes, turn=turn, reread=reread, model=model, as_json=as_json_)


def _tell_damage(transcript: Transcript) -> None:
    """Name the lines of the file that could not be used."""
    shown = transcript.damage[:10]
    for one in shown:
        print(f"artesian: line {one.line:,} {visible(one.reason)}; the rest is shown", file=sys.stderr)
    if len(transcript.damage) > len(shown):
        print(f"artesian: {len(transcript.damage) - len(shown):,} more lines cannot be used", file=sys.stderr)
