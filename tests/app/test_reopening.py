"""The engine thread while one model is closed for another."""

import threading

from app.host import Host, Measured, Opened
from tests.app.test_host import REQUEST, Heard
from tests.fakes import ScriptedBackend


def test_a_price_asked_for_while_the_old_model_is_closed_is_the_new_ones() -> None:
    closing, go_on = threading.Event(), threading.Event()

    class SlowToClose(ScriptedBackend):
        def close(self) -> None:
            closing.set()
            go_on.wait(10)
            super().close()

    first, second, third = ScriptedBackend(), SlowToClose(), ScriptedBackend()
    host = Host(lambda: first)
    heard = Heard(host)
    host.start()
    try:
        heard.wait_for(Opened)
        host.reopen(lambda: second)
        heard.wait_for(Opened, 2)
        host.reopen(lambda: third)
        assert closing.wait(10)
        host.measure(1, REQUEST)
        heard.wait_for(Measured)
        go_on.set()
        heard.wait_for(Opened, 3)
    finally:
        go_on.set()
        assert host.close(), "the engine thread did not end"
    assert (first.requests, second.requests, third.requests) == ([], [], [REQUEST])
    assert third.opened and third.closed
