"""Tasks are done once each, by as many processes as there are, and a killed one is replaced."""

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from inface.lab.errors import LabError
from inface.lab.paper.tasks import Meter, _Watch, carry_out
from inface.lab.sweeps.trials import _started


@dataclass(frozen=True)
class Toy:
    """Writes a line into a file, and dies before it so many times."""

    name: str
    place: Path
    deaths: int = 0
    total: float = 1.0

    def finished(self):
        return (self.place / "done").is_file()

    def carry_out(self, meter):
        with (self.place / "log").open("a") as file:
            file.write("begun\n")
        if len((self.place / "log").read_text().splitlines()) <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        meter.did(1.0, "all of it")
        (self.place / "done").touch()


def begun(toy):
    return len((toy.place / "log").read_text().splitlines())


def test_every_task_is_done_once_and_one_whose_worker_is_killed_is_begun_again(tmp_path):
    toys = [Toy(f"toy {index}", tmp_path / str(index), deaths=int(index == 1)) for index in range(4)]
    seen = []
    carry_out(toys, jobs=2, show=seen.append)
    assert [begun(toy) for toy in toys] == [1, 2, 1, 1]
    assert (seen[0].done, seen[0].part) == (0, 0)
    assert (seen[-1].done, seen[-1].total, seen[-1].part, seen[-1].stages) == (4, 4, 1, ())
    carry_out(toys, show=seen.append)
    assert [begun(toy) for toy in toys] == [1, 2, 1, 1]
    assert seen[-1].done == 4


def test_a_task_that_kills_every_worker_is_given_up(tmp_path):
    with pytest.raises(LabError, match="3 workers were killed one after the other"):
        carry_out([Toy("deadly", tmp_path / "deadly", deaths=100)])


@dataclass(frozen=True)
class Endless(Toy):
    """Says which process it is, and never ends."""

    def carry_out(self, meter):
        (self.place / "worker").symlink_to(str(os.getpid()))
        time.sleep(10_000)


def test_a_worker_lives_no_longer_than_the_process_that_started_it(tmp_path):
    parent = multiprocessing.get_context("forkserver").Process(
        target=carry_out, args=([Endless("endless", tmp_path / "endless")],)
    )
    parent.start()
    worker = tmp_path / "endless" / "worker"
    while not worker.is_symlink():
        assert parent.is_alive()
        time.sleep(0.01)
    parent.kill()
    parent.join()
    while _started(int(str(worker.readlink()))) is not None:
        time.sleep(0.01)


def test_time_left_is_told_by_what_was_done_by_this_call(tmp_path):
    toy = Toy("half", tmp_path / "half", total=10.0)
    watch = _Watch([toy])
    watch.begun -= 100.0
    meter = Meter(toy.place / "progress.json")
    meter.found(5.0)
    meter.did(1.0, "second half")
    state = watch.progress()
    assert state.stages == ("half: second half",)
    assert state.part == pytest.approx(0.6)
    assert state.seconds_left == pytest.approx(400.0, rel=0.01)
