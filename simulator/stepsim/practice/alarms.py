"""From firing label sets to what a person on call gets: episodes, and alarms, which are episodes that belong together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from stepsim.practice.exact import Labels, Moments
from stepsim.practice.rule_file import Kind, kind_of


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Unbroken firing of one label set."""

    labels: Labels
    begins: float
    ends: float | None
    """The first evaluation at which it did not fire any more; None if it did to the end."""

    def label(self, name: str) -> str:
        return dict(self.labels).get(name, "")


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Episodes of one alert in one run, merged where they overlap or follow without a gap: 64 ranks make one."""

    name: str
    kind: Kind
    episodes: tuple[Episode, ...]

    @property
    def begins(self) -> float:
        return self.episodes[0].begins

    @property
    def ends(self) -> float | None:
        ends = [episode.ends for episode in self.episodes if episode.ends is not None]
        return max(ends) if len(ends) == len(self.episodes) else None


def episodes(firing: Moments, every: float) -> list[Episode]:
    """In order of time. ``every``: seconds between two evaluations, the last of which is the recording's end."""
    found = [episode for labels, moments in firing.items() for episode in _unbroken(labels, moments, every)]
    return sorted(found, key=lambda episode: (episode.begins, sorted(episode.labels)))


def _unbroken(labels: Labels, moments: list[float], every: float) -> Iterable[Episode]:
    begins = moments[0]
    for this, following in zip(moments, [*moments[1:], float("inf")], strict=True):
        if following > this + 1.5 * every:
            yield Episode(labels=labels, begins=begins, ends=this + every)
            begins = following


def alarms(firing: Moments, *, every: float, last: float) -> list[Alarm]:
    """In order of time. ``last``: the last evaluation; what fires then has not ended."""
    found = episodes(firing, every)
    return merged(replace(one, ends=None) if one.ends is not None and one.ends > last else one for one in found)


def merged(episodes: Iterable[Episode], kind: Callable[[Mapping[str, str]], Kind] = kind_of) -> list[Alarm]:
    """In order of time, as the episodes must be, too. ``kind`` tells by the labels whether somebody is woken."""
    grouped: dict[tuple[str, Kind, str], list[list[Episode]]] = defaultdict(list)
    for episode in episodes:
        groups = grouped[episode.label("alertname"), kind(dict(episode.labels)), episode.label("run")]
        if groups and any(one.ends is None or one.ends >= episode.begins for one in groups[-1]):
            groups[-1].append(episode)
        else:
            groups.append([episode])
    found = [
        Alarm(name=name, kind=severity, episodes=tuple(group))
        for (name, severity, _), groups in grouped.items()
        for group in groups
    ]
    return sorted(found, key=lambda alarm: (alarm.begins, alarm.name))
