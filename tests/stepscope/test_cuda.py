"""The CUDA clock, against events that behave like CUDA's. Only a GPU can prove the figures."""

import threading

import pytest

from stepscope.cuda import MAX_EVENTS, CudaClock
from stepscope.phases import BACKWARD, DATA_WAIT, FORWARD, OPTIMIZER, PHASES
from stepscope.timeline import EXIT, FLUSH, Exhausted, Recorder, Resolver


class Stream:
    """A device that works off what is enqueued; ``done`` says how far it is."""

    def __init__(self):
        self.busy_until, self.host, self.done = 0.0, 0.0, 0.0

    def launch(self, seconds):
        self.busy_until = max(self.busy_until, self.host) + seconds


class Event:
    """cudaEvent: recorded on a stream, complete when the stream has passed it, timing in float milliseconds."""

    def __init__(self, enable_timing=False):
        assert enable_timing
        self.at = None

    def record(self, stream):
        stream.busy_until = max(stream.busy_until, stream.host)
        self.at, self.stream = stream.busy_until, stream

    def query(self):
        return self.stream.done >= self.at

    def elapsed_time(self, later):
        if not (self.query() and later.query()):
            raise RuntimeError("device not ready")
        return 1000 * (later.at - self.at)


class Tensor:
    """One number on the device, whose value is there once the stream has passed the copy."""

    def __init__(self, value, *, cuda=True, placements=None):
        self.value, self.is_cuda = value, cuda
        if placements is not None:
            self.placements = placements
            self.to_local = lambda: Tensor(value)

    def detach(self):
        return self

    def reshape(self, shape):
        return self

    def copy_(self, other, non_blocking):
        assert non_blocking
        self.value = other.value

    def __float__(self):
        assert not self.is_cuda, "reading a device tensor synchronizes"
        return self.value


class Placement:
    def __init__(self, partial):
        self.is_partial = lambda: partial


class Torch:
    """The part of torch that the clock uses. Synchronizing is allowed once."""

    float64 = "float64"

    def __init__(self):
        self.stream, self.synchronized = Stream(), 0
        self.capturing, self.devices = False, []
        self.cuda = self
        self.Event = Event

    def is_current_stream_capturing(self):
        return self.capturing

    def set_device(self, device):
        self.devices.append((threading.current_thread().name, device))

    def current_stream(self, device):
        return self.stream

    def synchronize(self, device):
        self.synchronized += 1
        self.stream.done = self.stream.busy_until

    def empty(self, shape, dtype, pin_memory):
        assert pin_memory
        return Tensor(None, cuda=False)


@pytest.fixture
def torch():
    return Torch()


@pytest.fixture
def clock(torch):
    return CudaClock(torch, "cuda:0")


def a_step(torch, recorder, number):
    """The host runs ahead: launching takes 1 ms each, the work 10 and 20 ms; data is there at once."""
    stream = torch.stream
    for code, host, device in ((DATA_WAIT, 0.001, 0), (FORWARD, 0.001, 0.010), (BACKWARD, 0.001, 0.020), (EXIT, 0, 0),
                               (OPTIMIZER, 0.001, 0.002)):  # fmt: skip
        recorder.mark(code)
        stream.launch(device)
        stream.host += host
    recorder.done(number)


def by_phase(record):
    return {
        phase: pytest.approx(before[0] + after[0])
        for phase, before, after in zip(PHASES, record.before, record.after, strict=True)
        if before[0] + after[0] > 1e-9
    }


def test_phases_are_the_devices_time_not_the_launches(torch, clock):
    """Events on one stream telescope: forward 10 ms, backward 20, although the host took 1 ms for each."""
    recorder = Recorder(clock)
    for number in range(3):
        a_step(torch, recorder, number)
    recorder.mark(FLUSH)
    torch.stream.done = torch.stream.busy_until
    records = list(Resolver(recorder).records())
    assert by_phase(records[1]) == {"forward": 0.010, "backward": 0.020, "optimizer": 0.002}
    total = sum(sum(row[0] for row in (*r.before, *r.after)) for r in records)
    assert total == pytest.approx(torch.stream.busy_until)


def test_data_that_is_late_is_waited_for_by_the_device_only_when_it_has_run_dry(torch, clock):
    """The host waits 15 ms for its batch, and the device still has 12 ms of work: 3 ms are exposed."""
    recorder, stream = Recorder(clock), torch.stream
    recorder.mark(FORWARD)
    stream.launch(0.012)
    recorder.done(0)
    recorder.mark(DATA_WAIT)
    stream.host += 0.015
    recorder.mark(FORWARD)
    recorder.done(1)
    recorder.mark(FLUSH)
    stream.done = stream.busy_until
    _, second = Resolver(recorder).records()
    assert by_phase(second) == {"data_wait": 0.003}


def test_nothing_waits_for_the_device(torch, clock):
    """One synchronization when the clock is made; then a step is resolved when the device has passed it, not before."""
    recorder = Recorder(clock)
    resolver = Resolver(recorder)
    a_step(torch, recorder, 0)
    recorder.mark(DATA_WAIT)
    torch.stream.done = 0.005
    assert list(resolver.records()) == []
    assert resolver.current()[0] == FORWARD
    torch.stream.done = torch.stream.busy_until
    assert len(list(resolver.records())) == 1
    assert resolver.current()[0] == DATA_WAIT
    assert torch.synchronized == 1


def test_events_are_used_again(torch, clock):
    """A thousand steps need no more events than a few."""
    recorder = Recorder(clock)
    resolver = Resolver(recorder)
    for number in range(1000):
        a_step(torch, recorder, number)
        torch.stream.done = torch.stream.busy_until
        list(resolver.records())
    assert clock._made < 20


def test_a_device_that_stands_still_exhausts_the_pool_and_nothing_else(torch, clock):
    """Steps are dropped and counted, memory does not grow."""
    for _ in range(MAX_EVENTS - 1):  # the clock itself keeps one
        clock.stamp()
    with pytest.raises(Exhausted):
        clock.stamp()
    recorder = Recorder(clock)
    resolver = Resolver(recorder)
    a_step(torch, recorder, 0)
    assert list(resolver.records()) == []
    assert recorder.alive
    assert len(recorder.stream) == 0


def test_a_step_in_which_a_graph_is_captured_is_dropped(torch, clock):
    """Its events would be part of the graph. The steps before and after are whole."""
    recorder = Recorder(clock)
    a_step(torch, recorder, 0)
    recorder.mark(DATA_WAIT)
    torch.capturing = True
    recorder.mark(FORWARD)
    recorder.mark(BACKWARD)
    torch.capturing = False
    recorder.done(1)
    a_step(torch, recorder, 2)
    recorder.mark(FLUSH)
    torch.stream.done = torch.stream.busy_until
    resolver = Resolver(recorder)
    assert [record.step for record in resolver.records()] == [0, 2]
    assert resolver.dropped == 1
    assert recorder.alive


def test_other_threads_ask_on_the_ranks_own_device(torch, clock):
    """Each says so once; the training loop's thread is left alone."""
    recorder = Recorder(clock)
    resolver = Resolver(recorder)
    a_step(torch, recorder, 0)
    torch.stream.done = torch.stream.busy_until
    list(resolver.records())
    assert torch.devices == []
    a_step(torch, recorder, 1)
    torch.stream.done = torch.stream.busy_until
    scrape = threading.Thread(target=lambda: [*resolver.records(), resolver.current()], name="scrape")
    scrape.start()
    scrape.join()
    assert torch.devices == [("scrape", "cuda:0")]


def test_the_devices_time_does_not_drift_away_from_the_hosts(torch, monkeypatch):
    """A device whose clock is 50 ppm slow, over two weeks: a step's end stays within a second of the host's time. While the
    device stands still, its last stamp does not grow younger."""
    now = 1.7e9
    monkeypatch.setattr("time.time", lambda: now)
    clock = CudaClock(torch, "cuda:0")
    for _ in range(14 * 24 * 60):
        now += 60.0
        torch.stream.host += 60.0 * (1 - 50e-6)
        stamp = clock.stamp()
        torch.stream.done = torch.stream.busy_until
        told = clock.epoch(stamp)
        clock.release(stamp)
    assert told == pytest.approx(now, abs=1.0)
    last = clock.stamp()
    torch.stream.done = torch.stream.busy_until
    ages = []
    for _ in range(1000):
        now += 60.0
        ages.append(now - clock.epoch(last))
    assert ages == sorted(ages)
    assert ages[-1] == pytest.approx(60_000, rel=0.01)


def test_a_loss_on_the_device_is_read_without_waiting(torch, clock):
    """A copy to pinned memory, which has arrived when the step's last event has passed."""
    assert clock.number(clock.keep(Tensor(2.5))) == 2.5
    assert clock.number(clock.keep(1.5)) == 1.5
    assert clock.number(clock.keep(None)) is None


def test_a_sharded_norm_is_read_only_where_no_collective_is_needed(torch, clock):
    """A replicated one has a local copy; a partial one would need an all-reduce."""
    assert clock.number(clock.keep(Tensor(3.0, placements=[Placement(False)]))) == 3.0
    assert clock.keep(Tensor(3.0, placements=[Placement(True)])) is None
