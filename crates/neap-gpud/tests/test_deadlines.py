"""Programs with deadlines: who gets a promise, and that memory moves once for a job. Time here is not trusted."""

import time

from conftest import BUILD, MIB, right

HOOK = str(BUILD / "libneap_hook.so")


def test_promises_are_given_as_far_as_they_can_be_kept(bench):
    card = bench()
    # Copies are promised for at a rate that this machine has, however busy it is.
    card.schedule("--swap", "4s")
    known = ["--memory", "40MiB", "--period", "2s", "--wcet", "100ms"]
    first = card.run("steps.py", 36, 8, 200, HOOK, options=known)
    second = card.run("steps.py", 36, 8, 200, HOOK, options=known)
    while len(card.metric("promised")) < 2:
        time.sleep(0.02)
    assert card.metric("promised") == [1.0, 1.0]
    # No time is left for another that runs as long as its period.
    card.run("steps.py", 36, 1, 200, HOOK, options=["--memory", "20MiB", "--period", "150ms", "--wcet", "140ms"])
    while len(card.metric("promised")) < 3:
        time.sleep(0.02)
    assert card.metric("promised") == [1.0, 1.0, 0.0]
    turns, moved = 1, 0
    while first.poll() is None or second.poll() is None:
        turns = max([turns, *card.metric("turns_total")])
        moved = max([moved, *card.metric("in_bytes_total")])
        time.sleep(0.05)
    right(first)
    right(second)
    # Property 1: at most what was promised comes back for a job, once.
    assert 0 < moved <= turns * 40 * MIB


def test_a_job_is_measured_before_it_is_promised(bench):
    card = bench()
    card.schedule("--learn", "5", "--swap", "4s")
    options = ["--memory", "40MiB", "--period", "300ms"]
    program = card.run("steps.py", 24, 30, 100, options=options)
    states = set()
    while program.poll() is None:
        states.update(line[2] for line in card.table())
        time.sleep(0.02)
    right(program)
    assert {"measuring", "promised"} <= states or {"measuring", "refused"} <= states, states
