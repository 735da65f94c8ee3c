"""What is lost of a conversation that was closed, in words: the screen, line mode and the command say it alike."""

from app.transcripts.transcript import Transcript


def unsaved_text(transcript: Transcript) -> str:
    """That the newest part of `transcript` is on no drive, and why; "" when all of it is."""
    if transcript.n_unsaved == 0:
        return ""
    reason = f": {transcript.problem_reason}" if transcript.problem_reason is not None else ""
    return f"the newest part of the conversation could not be saved{reason}"
