"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Have programs that tests start hear Ctrl+C also where the run itself was told not to (`nohup`, a background job).

    They would inherit that, and a test of Ctrl+C would wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
