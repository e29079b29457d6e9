"""The referee over HTTP: as a thread, and as the command."""

import json
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from stepscope.discovery import SdEntry
from stepscope.peers import Puller, fetch, file_sd
from stepscope.phases import ALLREDUCE, BACKWARD, PHASES
from stepscope.record import StepRecord
from stepscope.ring import StepRing, document
from stepscope.server import JSON, Answer, MetricsServer


class Rank:
    """A rank's page; rank 1's backward is half a second longer than the others'."""

    def __init__(self, rank, world=2, port=0):
        self.rank, self.world, self.process, self.asked = rank, world, f"{rank} of start 0", []
        self.ring = StepRing()
        self.server = MetricsServer({"/steps": self.steps, "/metrics": lambda query: Answer("up 1\n")}, port=port)
        self.address = f"127.0.0.1:{self.server.port}"

    def run(self, steps):
        for step in steps:
            before = [[0.1] for _ in PHASES]
            before[BACKWARD], before[ALLREDUCE] = ([1.5], [0.1]) if self.rank == 1 else ([1.0], [0.6])
            self.ring.add(StepRecord(step=step, before=before, after=[[0.0] for _ in PHASES], ended=[0.0]))

    def steps(self, query):
        self.asked.append(int(query["since"]))
        return Answer(self.document(self.asked[-1]), JSON)

    def document(self, since):
        return document(self.ring.since(since), run="r", rank=self.rank, node="a", process=self.process,
                        world_size=self.world, strategy="ddp")  # fmt: skip


@pytest.fixture
def ranks():
    made = [Rank(rank) for rank in range(2)]
    yield made
    for rank in made:
        rank.server.close()


@pytest.fixture
def puller(ranks):
    made = Puller(lambda: [rank.address for rank in ranks], every_seconds=0.01)
    yield made
    made.close()


def complete(puller):
    return puller.view(lambda alignment: alignment.referee.outcomes["complete"] if alignment.referee else None)


def test_only_what_is_new_is_asked_for(ranks, puller):
    """And the verdict is published under the late rank's labels."""
    for steps in (range(5), range(5, 8), ()):
        for rank in ranks:
            rank.run(steps)
        puller.sweep()
    assert ranks[0].asked == [-1, 4, 7]
    assert complete(puller) == 7
    text = puller.text()
    assert 'training_late_steps_total{run="r",rank="1",node="a"} 7' in text
    assert 'training_referee_steps_total{run="r",outcome="complete"} 7' in text


def test_nothing_is_published_while_ranks_are_missing(ranks, puller):
    """An empty page, no zeros."""
    ranks[0].run(range(3))
    ranks[1].server.close()
    puller.sweep()
    assert puller.text() == ""


def test_a_rank_that_does_not_answer_is_asked_less_and_less_often(ranks, puller, caplog):
    """Said once; when it is back, everything it kept is there."""
    for rank in ranks:
        rank.run(range(3))
    ranks[1].server.close()
    for _ in range(30):
        puller.sweep()
    assert caplog.text.count(f"{ranks[1].address} gives no step records") == 1
    back = Rank(1, port=ranks[1].server.port)
    back.run(range(6))
    ranks[0].run(range(3, 6))
    deadline = time.monotonic() + 30
    while complete(puller) != 5:
        assert time.monotonic() < deadline
        puller.sweep()
        time.sleep(0.02)
    back.server.close()


def test_a_restart_is_noticed_and_read_from_its_beginning(ranks, puller):
    """The new processes replay steps that the old ones had done."""
    for rank in ranks:
        rank.run(range(10))
    puller.sweep()
    for rank in ranks:
        rank.process, rank.ring = f"{rank.rank} of start 1", StepRing()
        rank.run(range(6, 9))
    puller.sweep()
    puller.sweep()
    assert puller.view(lambda alignment: alignment.starts) == 2
    assert complete(puller) == 9 + 2


def test_a_restart_that_has_gone_further_is_read_from_its_beginning(ranks, puller):
    """The referee was away, or the new processes are quick: what they did before the asked step counts as well."""
    for rank in ranks:
        rank.run(range(10))
    puller.sweep()
    for rank in ranks:
        rank.process, rank.ring = f"{rank.rank} of start 1", StepRing()
        rank.run(range(20))
    puller.sweep()
    assert complete(puller) == 9 + 19
    assert ranks[0].asked == [-1, 9, -1]


def test_a_node_answers_for_its_ranks(ranks):
    """One address, a list of documents."""
    for rank in ranks:
        rank.run(range(4))
    node = MetricsServer(
        {"/steps": lambda query: Answer(f"[{ranks[0].document(-1)},{ranks[1].document(-1)}]", JSON)}, port=0
    )
    puller = Puller(lambda: [f"127.0.0.1:{node.port}"])
    puller.sweep()
    puller.sweep()
    assert complete(puller) == 3
    puller.close()
    node.close()


def test_behind_a_node_no_rank_is_skipped_that_is_behind_or_silent(ranks):
    """Rank 1 is a step behind, then its page times out once: its rows are asked for all the same."""
    asked, silences = [], [False, False, True, False]

    def steps(query):
        asked.append(int(query["since"]))
        answering = ranks[:1] if silences.pop(0) else ranks
        return Answer(f"[{','.join(rank.document(asked[-1]) for rank in answering)}]", JSON)

    node = MetricsServer({"/steps": steps}, port=0)
    puller = Puller(lambda: [f"127.0.0.1:{node.port}"])
    for ahead, behind in ((range(3), range(2)), (range(3, 6), ()), ((), range(2, 5)), ((), [5])):
        ranks[0].run(ahead)
        ranks[1].run(behind)
        puller.sweep()
    assert asked == [-1, 1, 1, 1]
    assert complete(puller) == 5
    puller.close()
    node.close()


def test_an_answer_that_is_none_is_said(puller, ranks, caplog):
    """Another program on that port."""
    other = MetricsServer({"/steps": lambda query: Answer("<html>")}, port=0)
    wrong = Puller(lambda: [f"127.0.0.1:{other.port}"], every_seconds=0.01)
    for _ in range(3):
        wrong.sweep()
        time.sleep(0.05)
    assert "gives no step records" in caplog.text
    assert wrong.text() == ""
    wrong.close()
    other.close()


def test_discovery_files_name_the_ranks_of_a_run(tmp_path):
    """A node's endpoint names no run; the referee's own entry is no rank."""
    SdEntry(tmp_path, "a", "h:1", {"job": "training", "__stepscope_run__": "x"}).write()
    SdEntry(tmp_path, "b", "h:2", {"job": "training", "__stepscope_run__": "y"}).write()
    SdEntry(tmp_path, "c", "h:3", {"job": "training"}).write()
    SdEntry(tmp_path, "d", "h:4", {"job": "referee"}).write()
    assert file_sd(tmp_path)() == ["h:1", "h:2", "h:3"]
    assert file_sd(tmp_path, "x")() == ["h:1", "h:3"]


def command(*arguments):
    return subprocess.Popen([sys.executable, "-m", "stepsim", *arguments], stderr=subprocess.PIPE, text=True)


def test_the_referee_runs_as_a_process_of_its_own(ranks):
    """It says where, serves the critical path, and ends at SIGTERM with status 0."""
    for rank in ranks:
        rank.run(range(5))
    process = command("referee", "--targets", ",".join(rank.address for rank in ranks), "--port", "0", "--every", "0.2")
    url = process.stderr.readline().split()[-1]
    deadline = time.monotonic() + 20
    while (
        'training_referee_steps_total{run="r",outcome="complete"} 4'
        not in urllib.request.urlopen(url, timeout=5).read().decode()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.stderr.close()


def test_a_node_is_served_by_a_process_of_its_own(ranks, tmp_path):
    """Its ranks, its host, and a discovery file while it runs."""
    ranks[0].run(range(2))
    process = command("serve", "--ranks", "1", "--base-port", str(ranks[0].server.port), "--port", "0", "--no-nvml",
                      "--host-metrics", "--sd-dir", str(tmp_path))  # fmt: skip
    address = process.stderr.readline().split("//")[-1].split("/")[0]
    text = fetch(address, "/metrics").decode()
    assert "up 1" in text
    assert f'stepscope_rank_up{{port="{ranks[0].server.port}"}} 1' in text
    assert "node_cpu_seconds_total" in text
    assert 'stepscope_collector_success{collector="host"} 1' in text
    (entry,) = tmp_path.iterdir()
    assert json.loads(entry.read_text())[0]["targets"] == [address]
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []
    process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--port", "http"], "'http' is no port"),
        (["serve", "--ranks", "-1"], "no number of ranks"),
        (["referee"], "one of the arguments --targets --sd-dir is required"),
        (["referee", "--targets", "a:1", "--every", "-3"], "'-3' is no number of seconds"),
        (["referee", "--targets", "a,b"], "write host:port,host:port; a is not"),
    ],
)
def test_bad_usage_is_said(arguments, said):
    """Exit status 2."""
    process = command(*arguments)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 2
    assert said in error


def test_a_port_in_use_ends_the_command_with_the_way_out(ranks):
    """Exit status 2, one line, no traceback."""
    process = command("serve", "--ranks", "0", "--no-nvml", "--port", str(ranks[0].server.port))
    _, error = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "cannot listen on 127.0.0.1" in error
    assert "Traceback" not in error
