"""Profiles: what runs did, as trace events."""

import json
import os

import pytest

import neaptide

from .conftest import rows


def profiled(folder, **options):
    made = neaptide.SessionOptions(**options)
    made.enable_profiling = True
    made.profile_file_prefix = str(folder / "profile")
    return made


def test_lanes_of_every_run_are_in_the_trace(mlp, tmp_path):
    session = neaptide.InferenceSession(mlp, profiled(tmp_path, memory_budget="6MiB"))
    for _ in range(5):
        session.run(None, {"x": rows(4)})
    path = session.end_profiling()
    assert path.startswith(str(tmp_path / "profile_")) and path.endswith(".json")
    assert session.end_profiling() == ""
    events = json.load(open(path))
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"runs", "compute", "load"} <= lanes
    kinds = {event["cat"] for event in events if event["ph"] == "X"}
    assert {"run", "compute", "load"} <= kinds
    numbers = [event["args"]["run"] for event in events if event.get("cat") == "run"]
    assert numbers == list(range(5))
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in events if event["ph"] == "X")
    # A compute is within its run.
    runs = {event["args"]["run"]: event for event in events if event.get("cat") == "run"}
    computes = [event for event in events if event.get("cat") == "compute"]
    assert len(computes) >= 5 * 2
    for event in computes:
        run = runs[event["args"]["run"]]
        assert run["ts"] <= event["ts"] <= run["ts"] + run["dur"]
    # Weights that do not stay are read.
    assert sum(event["args"]["bytes"] for event in events if event.get("cat") == "load") >= 5 << 20
    assert "mlp.onnx within 6" in events[0]["args"]["name"]


def test_each_plan_is_a_process_of_the_trace(mlp, tmp_path):
    session = neaptide.InferenceSession(mlp, profiled(tmp_path, memory_budget="8MiB"))
    for count in (1, 1, 3):
        session.run(None, {"x": rows(count)})
    session.set_memory_budget("6MiB")
    session.run(None, {"x": rows(3)})
    # The page of the plan is no part of it.
    assert session.plan() is not None
    events = json.load(open(session.end_profiling()))
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert len(names) == 3
    runs = [event for event in events if event.get("cat") == "run"]
    assert [event["args"]["run"] for event in runs] == [0, 1, 2, 3]
    assert [names[event["pid"]].partition(" within ")[2] for event in runs] == [
        "8 MiB, x 1x1024",
        "8 MiB, x 1x1024",
        "8 MiB, x 3x1024",
        "6 MiB, x 3x1024",
    ]
    begins = [event["ts"] for event in runs]
    assert begins == sorted(begins)


def test_many_runs_are_written_as_they_go(identity, tmp_path):
    session = neaptide.InferenceSession(identity, profiled(tmp_path))
    for _ in range(2500):
        session.run(None, {"x": rows(1)[:, :4].copy()})
    (name,) = (name for name in os.listdir(tmp_path) if name.startswith("profile_"))
    assert os.path.getsize(tmp_path / name) > 100_000
    events = json.load(open(session.end_profiling()))
    assert [event["args"]["run"] for event in events if event.get("cat") == "run"] == list(range(2500))


def test_a_profile_that_nobody_ended_is_whole(identity, tmp_path):
    session = neaptide.InferenceSession(identity, profiled(tmp_path))
    assert session.get_profiling_start_time_ns() > 0
    session.run(None, {"x": rows(1)[:, :4].copy()})
    del session
    (name,) = (name for name in os.listdir(tmp_path) if name.startswith("profile_"))
    assert any(event.get("cat") == "run" for event in json.load(open(tmp_path / name)))


def test_two_profiles_of_one_second_have_two_names(identity, tmp_path):
    first = neaptide.InferenceSession(identity, profiled(tmp_path))
    second = neaptide.InferenceSession(identity, profiled(tmp_path))
    assert first.end_profiling() != second.end_profiling()


def test_without_profiling_there_is_none(identity, tmp_path):
    session = neaptide.InferenceSession(identity)
    assert session.end_profiling() == ""
    assert session.get_profiling_start_time_ns() == 0
    options = profiled(tmp_path / "absent")
    with pytest.raises(Exception, match="absent"):
        neaptide.InferenceSession(identity, options)
