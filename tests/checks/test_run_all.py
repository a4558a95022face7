"""A notebook's cells, sent all at once as "Run all" sends them, in a kernel of their own."""

from queue import Empty

import pytest

from attention_course.checks.engine import kernel

SCORES = "03_scaled_dot_product.scores"
STARTER = "def scores(query, key):\n    raise NotImplementedError()"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with kernel._kernel(tmp_path_factory.mktemp("notebook")) as (_, client):
        yield client


def ran(client, *sources):
    """For each cell: how its reply ended, the error it shows, and what it printed."""
    asked = [client.execute(source, store_history=True, allow_stdin=False) for source in sources]
    errors, printed, replies = {}, {}, {}
    while len(replies) < len(asked):
        reply = client.get_shell_msg(timeout=60)
        replies[reply["parent_header"]["msg_id"]] = reply["content"]["status"]
    try:
        while True:
            message = client.get_iopub_msg(timeout=1)
            cell, content = message["parent_header"].get("msg_id"), message["content"]
            if message["msg_type"] == "error":
                errors[cell] = content["ename"], content["traceback"]
            elif message["msg_type"] == "stream":
                printed[cell] = printed.get(cell, "") + content["text"]
    except Empty:
        pass
    return [(replies[cell], errors.get(cell, ("", []))[0], printed.get(cell, "")) for cell in asked], errors


def test_run_all_goes_on_past_what_is_not_finished(running):
    told, _ = ran(running, "1 / 0", "print('reached')")
    assert told == [("error", "ZeroDivisionError", ""), ("aborted", "", "")]  # a kernel's own way

    told, errors = ran(
        running,
        "from attention_course.checks import check, hint, progress",
        STARTER,
        f"check('{SCORES}', scores)",
        "scores(1, 2)",
        "def scores(query, key) return 1",
        f"hint('{SCORES}', 1)",
        "print('summary')",
    )
    assert [(status, error) for status, error, _ in told] == [
        ("ok", ""), ("ok", ""), ("ok", "CheckFailed"), ("ok", "NotImplementedError"), ("ok", "SyntaxError"),
        ("ok", ""), ("ok", ""),
    ]  # fmt: skip
    assert told[-2][2].startswith("Hint 1 of 3: ") and told[-1][2] == "summary\n"
    [card] = [lines for name, lines in errors.values() if name == "CheckFailed"]
    assert card == [f"CheckFailed: {SCORES}: not started"]  # one line, and nothing said twice

    told, _ = ran(running, "import os; print(os.environ['OMP_WAIT_POLICY'])")
    assert told == [("ok", "", "PASSIVE\n")]

    told, _ = ran(running, "raise KeyboardInterrupt", "print('reached')")
    assert told == [("error", "KeyboardInterrupt", ""), ("aborted", "", "")]
