"""Who has a file locked, as far as the system tells."""

from pathlib import Path

_LOCKS = Path("/proc/locks")


def holder_of(path: Path, locks: Path = _LOCKS) -> str:
    """ "Another window (process 1234)", or "Another window" where the system does not say which."""
    try:
        inode = path.stat().st_ino
        lines = locks.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return "Another window"
    for line in lines:
        fields = line.split()
        # "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; a process outside this container has no number here.
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
            return (
                f"Another window (process {fields[4]})" if fields[4].isdigit() and int(fields[4]) else "Another window"
            )
    return "Another window"
