"""Programs share a card beyond its memory, and every byte is what it was."""

import os
import signal
import time

from conftest import MIB, right


def test_a_program_alone_is_as_it_was(bench):
    card = bench()
    right(card.run("steps.py", 24, 3, hooked=False))
    card.schedule()
    right(card.run("steps.py", 24, 3))
    right(card.run("bindings.py", 24, 2))


def test_without_a_scheduler_nothing_is_run(bench):
    card = bench()
    out, errors = card.run("steps.py", 24, 1).communicate(timeout=60)
    assert "no scheduler answers" in errors and errors.count("\n") == 1


def test_four_programs_in_half_of_the_memory_they_have(bench):
    card = bench()
    card.schedule("--slice", "20ms")
    programs = [card.run("steps.py", 32, 6, 20) for _ in range(2)]
    programs += [card.run("bindings.py", 32, 4) for _ in range(2)]
    moved = 0
    while any(p.poll() is None for p in programs):
        assert card.used_mib() <= card.mib
        moved = max([moved, *card.metric("in_bytes_total")])
        time.sleep(0.05)
    for program in programs:
        right(program)
    assert moved > 0, "nothing was swapped"
    assert card.table() == []


def test_a_quota_is_the_card_that_a_program_sees(bench):
    card = bench()
    card.schedule()
    program = card.run("sees.py", options=["--memory", "16MiB"])
    errors = right(program)
    assert errors.count("is refused") == 1, errors
    # The scheduler has the last word.
    refused = card.run("sees.py", options=["--memory", "100GiB"])
    _, errors = refused.communicate(timeout=60)
    assert "are asked for, and programs share" in errors


def test_work_that_runs_is_never_swapped(bench):
    """The stand-in ends a program whose memory is unmapped while a kernel has it."""
    card = bench(rate=1 << 30)
    card.schedule("--slice", "10ms")
    programs = [card.run("slow.py", 40, 12) for _ in range(2)]
    for program in programs:
        right(program)


def test_memory_of_a_program_that_is_killed_is_free(bench):
    card = bench(rate=64 * MIB)
    card.schedule("--slice", "20ms")
    first = card.run("steps.py", 40, 500, 1)
    second = card.run("steps.py", 40, 6, 1)
    # In the middle of a swap, which takes most of the time at this rate.
    deadline = time.monotonic() + 60
    while not any(card.metric("in_bytes_total")) and time.monotonic() < deadline:
        time.sleep(0.02)
    first.kill()
    first.wait()
    right(second)
    assert card.table() == []


def test_programs_go_on_when_the_scheduler_dies(bench):
    card = bench()
    daemon = card.schedule("--slice", "20ms")
    programs = [card.run("steps.py", 40, 40, 50) for _ in range(2)]
    card.wait_for(2, 38)
    daemon.kill()
    for program in programs:
        assert "going on without" in right(program)


def test_programs_stop_when_they_are_told_to(bench):
    card = bench()
    daemon = card.schedule("--orphans", "stop")
    program = card.run("steps.py", 24, 200, 50)
    while not card.table():
        time.sleep(0.02)
    daemon.kill()
    _, errors = program.communicate(timeout=60)
    assert program.returncode != 0 and "cannot be used any more" in errors


def test_a_new_scheduler_takes_over(bench):
    card = bench()
    daemon = card.schedule("--slice", "20ms")
    programs = [card.run("steps.py", 40, 30, 50) for _ in range(2)]
    while len(card.table()) < 2:
        time.sleep(0.02)
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    card.schedule("--slice", "20ms")
    for _ in range(200):
        if len(card.table()) == 2:
            break
        time.sleep(0.02)
    assert len(card.table()) == 2
    for program in programs:
        assert "going on without" not in right(program)


def test_where_the_host_has_no_memory_programs_are_told(bench):
    """Nothing can be swapped: the second program gets an error as from a full card, and the first is right."""
    card = bench(host_mib=0)
    card.schedule("--slice", "20ms")
    first = card.run("steps.py", 40, 40, 20)
    while not card.table() or card.used_mib() < 40:
        time.sleep(0.02)
    second = card.run("steps.py", 40, 2)
    _, errors = second.communicate(timeout=60)
    assert second.returncode != 0 and "cuMemAlloc_v2: error 2" in errors
    assert "no memory to swap to" in right(first)


def test_a_child_after_a_fork_has_its_own_turn(bench):
    card = bench()
    card.schedule()
    right(card.run("forks.py"))


def test_swaps_soak(bench):
    """Two programs that never fit together, for many turns."""
    rounds = int(os.environ.get("NEAP_GPU_SOAK", "60"))
    card = bench(mib=16)
    card.schedule("--slice", "1ms")
    programs = [card.run("steps.py", 12, rounds, 1) for _ in range(2)]
    for program in programs:
        right(program, 3600)
