"""Discovery files, as Prometheus reads them."""

import json
import os
import time

import pytest

from stepscope.discovery import STALE_SECONDS, SdEntry, entries, sweep


@pytest.fixture
def entry(tmp_path):
    return SdEntry(tmp_path / "sd", "run/1-host-9401", "host:9401", {"job": "training"})


def age(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def test_an_entry_is_what_file_sd_reads(entry, tmp_path):
    """One group with its target and labels, nothing else; the folder is made; no draft is left."""
    entry.write()
    assert [file.name for file in (tmp_path / "sd").iterdir()] == ["stepscope-run_1-host-9401.json"]
    assert json.loads(entry.path.read_text()) == [{"targets": ["host:9401"], "labels": {"job": "training"}}]
    assert list(entries(tmp_path / "sd")) == [("host:9401", {"job": "training"})]
    entry.remove()
    assert list(entries(tmp_path / "sd")) == []
    entry.remove()


def test_stale_entries_are_swept_and_live_ones_kept(entry, tmp_path):
    """A process that was killed leaves its file, and maybe a draft; others' files are not ours."""
    entry.write()
    other = SdEntry(tmp_path / "sd", "dead", "host:1", {})
    other.write()
    draft, foreign = tmp_path / "sd/stepscope-x.1.tmp", tmp_path / "sd/mine.json"
    draft.write_text("[")
    foreign.write_text("[]")
    for path in (other.path, draft, foreign):
        age(path, STALE_SECONDS + 10)
    age(entry.path, STALE_SECONDS - 30)
    assert sorted(sweep(tmp_path / "sd")) == sorted([other.path, draft])
    assert entry.path.exists()
    assert foreign.exists()


def test_a_heartbeat_keeps_an_entry_and_brings_it_back(entry, tmp_path):
    """A process that was asleep may have been swept by another one."""
    entry.write()
    age(entry.path, STALE_SECONDS + 10)
    entry.touch()
    assert sweep(tmp_path / "sd") == []
    entry.remove()
    entry.touch()
    assert [target for target, _ in entries(tmp_path / "sd")] == ["host:9401"]


def test_a_failing_disk_leaves_what_was_there(entry, monkeypatch):
    """The old entry stays whole, no draft is left, and the error is the caller's."""
    entry.write()
    before = entry.path.read_text()

    def full(self, text, **more):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="No space"):
        entry.write()
    assert entry.path.read_text() == before
    assert len(list(entry.path.parent.iterdir())) == 1


def test_unreadable_entries_are_passed_over(entry, tmp_path):
    """Half a file of somebody else's."""
    entry.write()
    for name, text in (("a", "["), ("b", '{"x": 1}'), ("c", '[{"targets": ["h:1"]}]'), ("d", "3")):
        (tmp_path / f"sd/stepscope-{name}.json").write_text(text)
    assert [target for target, _ in entries(tmp_path / "sd")] == ["host:9401"]
    assert list(entries(tmp_path / "absent")) == []
