"""Pages of the server that are kept: drawn once, a few of them, and one at a time."""

import threading

import pytest

from clear_mlflow.server.kept_pages import BusyError, KeptPages


def test_a_page_is_drawn_once_for_what_it_shows():
    """Again only when that has changed, or when sixteen others were asked for since."""
    drawn = []
    kept = KeptPages()

    def ask(shown):
        return kept.get(shown, lambda: drawn.append(shown) or f"page {len(drawn)}")

    assert [ask(["a", {"rows": 1}]), ask(["a", {"rows": 1}])] == ["page 1", "page 1"]
    assert ask(["a", {"rows": 2}]) == "page 2"
    for other in range(15):
        ask(["a", {"rows": 2}])  # still asked for, so it stays
        ask(other)
    assert ask(["a", {"rows": 2}]) == "page 2"
    assert ask(["a", {"rows": 1}]) == "page 18"


def test_who_would_wait_too_long_is_told_so():
    """While another page is drawn, and no longer."""
    kept = KeptPages(patience=0.01)
    with pytest.raises(ZeroDivisionError):
        kept.get("slow", lambda: str(1 / 0))  # what cannot be drawn is not kept, nor in the way
    begun, go_on = threading.Event(), threading.Event()

    def slowly():
        begun.set()
        assert go_on.wait(60)
        return "slow"

    drawing = threading.Thread(target=kept.get, args=("slow", slowly))
    drawing.start()
    assert begun.wait(60)
    with pytest.raises(BusyError):
        kept.get("other", lambda: "other")
    go_on.set()
    drawing.join(60)
    assert kept.get("other", lambda: "other") == "other"
    assert kept.get("slow", lambda: "drawn anew") == "slow"
