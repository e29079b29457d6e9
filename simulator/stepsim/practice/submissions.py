"""Results that are kept: ``<folder>/<drill id>/<number>/`` holds ``rules.yml``, ``grade.json`` and ``report.html``."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from errno import EEXIST, ENOTEMPTY
from pathlib import Path

from stepsim.practice.as_json import as_dict
from stepsim.practice.grade import DrillGrade
from stepsim.practice.lint import Finding
from stepsim.practice.report import write_report
from stepsim.practice.rule_file import RuleFile

DRILL_ID = re.compile(r"[a-z0-9][a-z0-9-]*")
NUMBER = re.compile(r"[1-9][0-9]*")
TITLE = "Alert practice"
GRADE, RULES, REPORT = "grade.json", "rules.yml", "report.html"


class SubmissionError(ValueError):
    """One that is not there, or cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    number: int
    path: Path
    """Its folder."""
    score: float
    when: datetime

    @property
    def rules(self) -> Path:
        return self.path / RULES

    @property
    def report(self) -> Path:
        return self.path / REPORT


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """One that cannot be read, and why."""

    number: int
    path: Path
    why: str


def _now() -> datetime:
    return datetime.now(UTC)


class Submissions:
    """``now`` is the clock."""

    def __init__(self, folder: Path, now: Callable[[], datetime] = _now) -> None:
        self._folder, self._now = folder, now

    def keep(
        self,
        grade: DrillGrade,
        rules: RuleFile,
        *,
        findings: Sequence[Finding] = (),
        before: DrillGrade | None = None,
    ) -> Submission:
        """Under the next number: whole, or not at all."""
        folder = self._of(grade.drill.id)
        unfinished = folder / f".unfinished-{uuid.uuid4().hex}"
        unfinished.mkdir(parents=True)
        try:
            told = {"when": self._now().isoformat(timespec="seconds"), **as_dict(grade, told=True)}
            (unfinished / RULES).write_text(rules.text, encoding="utf-8")
            (unfinished / GRADE).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            earlier = None if before is None else [before]
            write_report([grade], rules, unfinished / REPORT, title=TITLE, findings=findings, before=earlier)
            return _read(_placed(unfinished))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def all(self, drill_id: str) -> list[Submission]:
        """Those that are whole, in order of their numbers."""
        return [one for one in self._kept(drill_id) if isinstance(one, Submission)]

    def damaged(self, drill_id: str) -> list[Damaged]:
        """Those that cannot be read, in order of their numbers."""
        return [one for one in self._kept(drill_id) if isinstance(one, Damaged)]

    def get(self, drill_id: str, number: int | None = None) -> Submission:
        """The last that is whole unless a number is given. Raises ``SubmissionError``, which names those that there are."""
        whole = {one.number: one for one in self.all(drill_id)}
        there = f"there are {', '.join(map(str, whole))}" if whole else "there is none yet"
        wanted = max(whole, default=0) if number is None else number
        if wanted in whole:
            return whole[wanted]
        for one in self.damaged(drill_id):
            if one.number == number:
                raise SubmissionError(f"submission {number} of {drill_id} is damaged: {one.why}; of whole ones {there}")
        which = "submission" if number is None else f"submission {number}"
        raise SubmissionError(f"no {which} of {drill_id}; {there}")

    def other(self, drill_id: str, one: Submission, number: int) -> Submission:
        """Another one, to compare ``one`` with. Raises ``SubmissionError``."""
        there = self.all(drill_id)
        if number != one.number:
            return self.get(drill_id, number)
        if len(there) == 1:
            raise SubmissionError(f"there is only submission {number}: submit again, then compare")
        numbers = ", ".join(str(kept.number) for kept in there if kept.number != number)
        raise SubmissionError(f"submission {number} is no comparison for itself; there are {numbers}")

    def _kept(self, drill_id: str) -> list[Submission | Damaged]:
        return [_kept(folder) for folder in _numbered(self._of(drill_id))]

    def _of(self, drill_id: str) -> Path:
        if not DRILL_ID.fullmatch(drill_id):
            raise SubmissionError(
                f"{drill_id!r} is no drill's id: those have small letters, digits and dashes, as straggler-01"
            )
        return self._folder / drill_id


def _numbered(folder: Path) -> list[Path]:
    found = [entry for entry in folder.iterdir() if NUMBER.fullmatch(entry.name)] if folder.is_dir() else []
    return sorted(found, key=lambda entry: int(entry.name))


def _placed(unfinished: Path) -> Path:
    """Under the first free number after the last one. Renaming fails where another was faster: its folder is not empty."""
    taken = _numbered(unfinished.parent)
    number = int(taken[-1].name) + 1 if taken else 1
    while True:
        try:
            return unfinished.rename(unfinished.with_name(str(number)))
        except OSError as error:
            if error.errno not in (ENOTEMPTY, EEXIST):
                raise
        number += 1


def _kept(folder: Path) -> Submission | Damaged:
    try:
        return _read(folder)
    except SubmissionError as error:
        return Damaged(number=int(folder.name), path=folder, why=str(error))


def _read(folder: Path) -> Submission:
    """Raises ``SubmissionError``."""
    for name in (RULES, GRADE, REPORT):
        if not (folder / name).is_file():
            raise SubmissionError(f"{name} is missing")
    try:
        told = json.loads((folder / GRADE).read_text(encoding="utf-8"))
        score, when = float(told["score"]), datetime.fromisoformat(told["when"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SubmissionError(f"{GRADE} does not hold a grade: {type(error).__name__}: {error}") from None
    return Submission(number=int(folder.name), path=folder, score=score, when=when)
