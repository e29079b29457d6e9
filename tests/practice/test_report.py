"""stepsim.practice.report: one file that stands alone, whose pictures are at the right times and whose text is only text."""

import re
from html import unescape
from xml.etree import ElementTree

import pytest

from practice_grades import BEGINS, HIT, LASTS, RESTARTS, SECONDS, SEED, drill, fires, graded, rule_file, struck
from stepsim.practice.drill import Flaps
from stepsim.practice.lint import Finding
from stepsim.practice.report import write_report
from stepsim.practice.report.closeup import AFTER_SECONDS, BEFORE_SECONDS
from stepsim.practice.report.closeup import LEFT as NEAR_LEFT
from stepsim.practice.report.closeup import RIGHT as NEAR_RIGHT
from stepsim.practice.report.marks import width_of
from stepsim.practice.report.timeline import LEFT, RIGHT

NASTY = "<script>alert('x')</script>"


@pytest.fixture
def page(tmp_path):
    """Writes a report and reads it."""

    def written(*grades, rules=None, **options):
        file = tmp_path / "report.html"
        write_report(grades, rules or rule_file(tmp_path), file, title=options.pop("title", "Practice"), **options)
        return file.read_text(encoding="utf-8")

    return written


@pytest.fixture
def rules(tmp_path):
    return rule_file(tmp_path)


def pictures(html, kind):
    """The SVG pictures of a kind, parsed."""
    return [
        ElementTree.fromstring(found) for found in re.findall(rf'<svg [^>]*class="{kind}".*?</svg>', html, re.DOTALL)
    ]


def bars(picture, *classes):
    """Begin and end of each bar of these classes, in the picture's units."""
    found = [one for one in picture.iter("rect") if set(classes) <= set(one.get("class", "").split())]
    return [(float(one.get("x")), float(one.get("x")) + float(one.get("width"))) for one in found]


def placed(moment, begins=0.0, ends=SECONDS, left=LEFT, right=RIGHT):
    return left + (moment - begins) / (ends - begins) * (right - left)


def text_of(html):
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL))).split())


def test_bars_lie_where_their_times_say(page, rules):
    """Truth, hit, false alarm and restart, to the hundredth of a unit."""
    (picture,) = pictures(
        page(graded(rules, HIT, fires(20_000, 21_000), incidents=[struck(ramp_seconds=0.0)])), "timeline"
    )
    assert bars(picture, "truth") == [pytest.approx((placed(BEGINS), placed(BEGINS + LASTS)), abs=0.01)]
    assert bars(picture, "fired", "hit") == [
        pytest.approx((placed(BEGINS + 90), placed(BEGINS + LASTS + 60)), abs=0.01)
    ]
    assert bars(picture, "fired", "false") == [pytest.approx((placed(20_000), placed(21_000)), abs=0.01)]
    assert bars(picture, "restart")[0][0] == pytest.approx(placed(RESTARTS[0]), abs=0.01)


def test_the_closeup_measures_delay_and_reset(page, rules):
    """The arrows reach from when it could be seen to the alarm, and from the fault's end to the alarm's."""
    (picture,) = pictures(page(graded(rules, HIT)), "closeup")
    window = {
        "begins": BEGINS - BEFORE_SECONDS,
        "ends": BEGINS + LASTS + AFTER_SECONDS,
        "left": NEAR_LEFT,
        "right": NEAR_RIGHT,
    }
    delay, reset = (one for one in picture.iter("path") if "arrow" in one.get("class"))
    for arrow, begins, ends in ((delay, BEGINS, BEGINS + 90), (reset, BEGINS + LASTS, BEGINS + LASTS + 60)):
        x, tip = re.match(r"M([\d.]+) .*H([\d.]+)m", arrow.get("d")).groups()
        assert float(x) == pytest.approx(placed(begins, **window), abs=0.01)
        assert float(tip) == pytest.approx(placed(ends, **window), abs=0.01)
    words = " ".join(one.text for one in picture.iter("text"))
    assert "told after 90 s · 300 s allowed" in words
    assert "gone after 60 s · 300 s allowed" in words


def test_the_closeup_puts_the_true_culprit_first(page, rules):
    """Among ranks that fire with it, which are fainter."""
    html = page(graded(rules, fires(BEGINS + 60, BEGINS + LASTS + 60, ranks=("1", "2", "12"))))
    (picture,) = pictures(html, "closeup")
    assert [one.text for one in picture.iter("text") if "rank" in (one.text or "")][1:] == [
        "rank 12 ✓",
        "rank 1",
        "rank 2",
    ]
    assert len(bars(picture, "fired", "victim")) == 2


def test_the_closeup_says_when_an_alert_ended_too_early_or_never(page, rules):
    """Either earns no points for its reset."""
    early, never = (text_of(page(graded(rules, fires(BEGINS + 90, ends)))) for ends in (BEGINS + 900, None))
    assert "ended 300 s before the fault did" in early
    assert "fires to the end of the data" in never


def test_what_fires_to_the_end_reaches_the_edge(page, rules):
    """An alarm without an end is drawn to the end of the data."""
    (picture,) = pictures(page(graded(rules, HIT, fires(20_000, None))), "timeline")
    assert bars(picture, "fired", "false") == [pytest.approx((placed(20_000), RIGHT), abs=0.01)]


def test_short_alarms_are_seen(page, rules):
    """One of thirty seconds is a unit wide, and drawn as three."""
    (picture,) = pictures(page(graded(rules, HIT, fires(20_000, 20_030))), "timeline")
    ((begins, ends),) = bars(picture, "fired", "false")
    assert ends - begins == pytest.approx(3)


def test_shapes_tell_what_colours_tell(page, rules):
    """A hit, a further alarm, a false one, a ticket beside a page, and a miss have marks of their own."""
    raised = [HIT, fires(BEGINS + 120, BEGINS + 600, "Again"), fires(20_000, 21_000, "Wrong"),
              fires(BEGINS + 150, BEGINS + 600, "Note", severity="ticket")]  # fmt: skip
    grade = graded(rules, *raised, incidents=[struck(), struck(25_000)])
    (picture,) = pictures(page(grade, rules=rules), "timeline")
    marks = {one.get("class").split()[-1]: one.get("d") for one in picture.iter("path")}
    assert marks.keys() >= {"hit", "miss", "visible"}
    html = page(grade, rules=rule_file(rules.path.parent, "Slow", "Again", "Wrong", "Note"))
    (picture,) = pictures(html, "timeline")
    marks = {one.get("class").split()[-1]: one.get("d") for one in picture.iter("path")}
    assert len({marks[kind] for kind in ("hit", "further", "false", "beside", "miss")}) == 5


def test_tickets_are_hatched(page, tmp_path):
    """By patterns that the page defines."""
    rules = rule_file(tmp_path, severity="ticket")
    html = page(
        graded(rules, fires(BEGINS + 90, BEGINS + LASTS, severity="ticket"), incidents=[struck(expect="ticket")]),
        rules=rules,
    )
    (picture,) = pictures(html, "timeline")
    assert len(bars(picture, "fired", "ticket", "hit")) == 1
    assert ".fired.ticket.hit { fill: url(#hatch-hit)" in html
    assert '<pattern id="hatch-hit"' in html


def test_a_fault_that_flaps_is_drawn_as_often_as_it_is_on(page, rules):
    """Twenty minutes, five on and five off."""
    flaps = struck(flaps=Flaps(lasts=300, pause=300))
    (picture,) = pictures(page(graded(rules, HIT, incidents=[flaps])), "timeline")
    on = [bar for bar in bars(picture, "truth") if bar not in bars(picture, "around")]
    expected = [(placed(BEGINS + at), placed(BEGINS + at + 300)) for at in (0, 600)]
    assert on == [pytest.approx(one, abs=0.01) for one in expected]


def test_what_is_to_mislead_is_grey_and_is_no_miss(page, rules):
    """Silence is right there, so that an alarm is false, and the page says during what."""
    lure = struck(20_000, fault="jitter", target={"run": True}, expect="silence")
    html = page(graded(rules, HIT, fires(20_100, 20_400), incidents=[struck(), lure]))
    (picture,) = pictures(html, "timeline")
    assert [one.get("class") for one in picture.iter("polygon")] == ["truth", "silence"]
    assert not [one for one in picture.iter("path") if "miss" in one.get("class")]
    assert "during jitter · run, which expects silence" in text_of(html)


def test_faults_at_once_stand_in_rows_of_their_own(page, rules):
    """Neither bars nor labels meet, at the right edge neither."""
    together = [struck(at, target={"rank": rank}) for rank, at in enumerate((16_800, 25_500, 26_100, 26_800), 10)]
    (picture,) = pictures(page(graded(rules, incidents=together)), "timeline")
    labels = [one for one in picture.iter("text") if one.get("class") == "truth-label"]
    taken = {}
    for one in labels:
        x, width = float(one.get("x")), width_of(one.text)
        begins = x - width if one.get("text-anchor") == "end" else x
        assert begins >= LEFT
        assert begins + width <= RIGHT
        taken.setdefault(one.get("y"), []).append((begins, begins + width))
    for row in taken.values():
        assert all(before[1] < after[0] for before, after in zip(sorted(row), sorted(row)[1:], strict=False))


def test_what_people_wrote_is_escaped(page, tmp_path):
    """Names of alerts, labels, titles, findings and a debrief are text, wherever they stand."""
    rules = rule_file(tmp_path, NASTY)
    grade = graded(rules, fires(BEGINS + 90, None, NASTY, ranks=(NASTY,)), fires(20_000, 20_600, NASTY), title=NASTY, goal=NASTY,
                   debrief=f"So {NASTY}\n\n{NASTY}\n", dead=[(NASTY, NASTY)])  # fmt: skip
    finding = Finding(level="error", line=1, rule=NASTY, check="c", message=NASTY, instead=NASTY)
    html = page(grade, rules=rules, title=NASTY, findings=[finding], before=[grade])
    assert "<script" not in html.lower()
    assert text_of(html).count(NASTY) > 20


def test_control_characters_do_not_reach_the_page(page, tmp_path):
    """They would break the pictures' XML."""
    rules = rule_file(tmp_path, "Slow\x1b[2J")
    html = page(graded(rules, fires(BEGINS + 90, None, "Slow\x1b[2J")), rules=rules)
    assert "\x1b" not in html
    assert "Slow\ufffd[2J" in html


def test_nothing_is_loaded_and_nothing_runs(page, rules):
    """No address of anything elsewhere, no picture that a debrief asks for, no script; and the browser is told so."""
    debrief = "![spy](https://example.com/spy.png)\n\n<img src=https://example.com/x>\n\n[run](javascript:alert(1))"
    html = page(graded(rules, HIT, debrief=debrief))
    assert not re.search(
        r"<(script|img|iframe|object|embed)\b|\ssrc=|srcset=|@import|url\((?!#)|<[^>]* on\w+=",
        html.replace("&lt;img src=", ""),
    )
    assert re.findall(r'<link [^>]*href="([^"]*)"', html) == ["data:,"]
    assert 'href="javascript' not in html
    assert "default-src &#x27;none&#x27;" in html


def test_the_debrief_is_rendered(page, rules):
    """Paragraphs, lists, code, emphasis and tables."""
    debrief = "**Who** waits, `late`:\n\n- one\n\n```\nup < 1\n```\n\n| a | b |\n|---|---|\n| c | d |\n"
    html = page(graded(rules, HIT, debrief=debrief))
    for piece in (
        "<strong>Who</strong>",
        "<code>late</code>",
        "<li>one</li>",
        "<code>up &lt; 1\n</code>",
        "<td>d</td>",
    ):
        assert piece in html


def test_without_debrief_neither_words_nor_reference_rules_are_told(page, rules):
    """The drill's, that is: its reference would give the answer away."""
    grade = graded(rules, HIT)
    told, kept = page(grade), page(grade, debrief=False)
    for secret in ("rank:training_culprit:share", "Look at"):
        assert secret in told
        assert secret not in kept


def test_misses_and_worst_cases_are_listed(page, tmp_path):
    """What was missed, the longest false alarm rather than the first, alarms beyond the first, and dead rules with a reason."""
    rules = rule_file(tmp_path, "Slow", "Other", "Dead")
    grade = graded(rules, HIT, fires(BEGINS + 120, BEGINS + 600, "Other"), fires(15_030, 15_060), fires(20_000, 24_000, "Other"),
                   incidents=[struck(), struck(25_000, target={"rank": 7})], dead=[("Dead", "it gives nothing")])  # fmt: skip
    text = text_of(page(grade, rules=rules))
    assert f"straggler · rank 7, seed {SEED} at 6:56:40" in text
    assert f"Other , a page, for 1 h 07 min from 5:33:20, seed {SEED} ; 1 more".replace(" ;", ";") in text
    assert "straggler, at 1 incident: after Slow also Other" in text
    assert "Dead : it gives nothing" in text


def test_a_grade_without_a_fault_says_so(page, rules):
    """Rather than leaving a hole."""
    assert "Nothing was missed, and nothing fired for nothing." in page(graded(rules, fires(BEGINS, BEGINS + LASTS)))


def test_findings_are_led_to_their_line(page, rules):
    """The line is marked, and the finding says what to write instead."""
    finding = Finding(level="error", line=5, rule="Slow", check="c", message="is wrong", instead="write this")
    html = page(graded(rules, HIT), rules=rules, findings=[finding])
    assert '<span class="line error" id="line-5">' in html
    assert 'href="#line-5"' in html
    assert "Slow is wrong Instead: write this" in text_of(html)


def test_against_before_scores_and_firings_are_compared(page, rules):
    """The difference has an arrow, and the earlier firing is in the same picture, thinner, where it was."""
    now, before = graded(rules, HIT), graded(rules, fires(BEGINS + 240, BEGINS + LASTS + 60), fires(20_000, 21_000))
    html = page(now, before=[before])
    assert f"▲ +{now.score.score - before.score.score:.1f}" in html
    (picture,) = pictures(html, "timeline")
    assert bars(picture, "fired", "before", "hit")[0][0] == pytest.approx(placed(BEGINS + 240), abs=0.01)
    thin = [one for one in picture.iter("rect") if "before" in one.get("class", "").split()]
    assert {float(one.get("height")) for one in thin} == {4.0}
    worse = page(before, before=[now])
    assert "▼ −" in worse


def test_rules_that_only_the_earlier_file_had_keep_a_lane(page, rules):
    """So that their firings are not lost from the comparison."""
    html = page(graded(rules, HIT), before=[graded(rules, fires(BEGINS + 60, BEGINS + LASTS, "Gone"))])
    (picture,) = pictures(html, "timeline")
    assert "Gone" in [one.text for one in picture.iter("text")]
    assert bars(picture, "fired", "before")[0][0] == pytest.approx(placed(BEGINS + 60), abs=0.01)


def test_over_many_drills_the_mean_leads(page, tmp_path):
    """With a row and a card for each, and lanes only for what fired there."""
    rules = rule_file(tmp_path, "Slow", "Elsewhere")
    one = graded(rules, HIT, id="first")
    other = graded(rules, fires(BEGINS + 60, BEGINS + LASTS, "Elsewhere"), id="second")
    html = page(one, other, rules=rules)
    assert text_of(html).index(f"{(one.score.score + other.score.score) / 2:.1f}") < text_of(html).index(
        "The mean of 2 drills"
    )
    assert re.findall(r'<a href="#(\w+)">', html) == ["first", "second"]
    first, second = (
        " ".join(text.text or "" for text in picture.iter("text")) for picture in pictures(html, "timeline")
    )
    assert "Slow" in first
    assert "Elsewhere" not in first
    assert "Elsewhere" in second


def test_a_rule_is_dead_over_many_drills_if_it_is_silent_in_all(page, tmp_path):
    """One that is silent in a drill may be meant for another."""
    rules = rule_file(tmp_path, "Slow", "Elsewhere", "Dead")
    grades = [graded(rules, HIT, id="first", dead=[("Dead", "because"), ("Elsewhere", "of no use")]),
              graded(rules, fires(BEGINS, BEGINS + 600, "Elsewhere"), id="second", dead=[("Dead", "because")])]  # fmt: skip
    text = text_of(page(*grades, rules=rules))
    assert text.count("Never matched, on any drill Dead : because") == 1
    assert "of no use" not in text


def test_bars_of_parts_have_their_length(page, rules):
    """A delay of 90 of 300 seconds leaves 70 %."""
    html = page(graded(rules, HIT))
    assert '<b>soon</b><span class="bar" role="img" aria-label="soon: 70 %"><i style="width:70.0%"' in html


def test_every_picture_is_well_formed(page, rules):
    """Also where a fault never showed, strikes a node, or lasts to the end."""
    incidents = [
        struck(),
        struck(10_000, target={"node": "node-0"}),
        struck(SECONDS - 600, target={"run": True}, lasts=600),
    ]
    html = page(graded(rules, HIT, incidents=incidents, visible=[BEGINS, float("inf"), SECONDS - 590], seeds=(1, 2)))
    assert len(pictures(html, "timeline")) == 2
    assert len(pictures(html, "closeup")) == 6
    assert not re.search(r'="[^"]*\b(inf|nan)\b', html)


def test_drills_are_told_by_their_title(page, rules):
    """And by the goal that a learner has read."""
    html = page(graded(rules, HIT))
    assert f"<h2>{drill().title}</h2>" in html
    assert drill().goal in html
