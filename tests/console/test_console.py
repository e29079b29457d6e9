"""The console in a browser, as somebody uses it."""

import re

import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from running_simulator import Simulator
from stepsim.faults import FAULTS
from stepsim.serving import free_port
from watched import Watched

pytestmark = pytest.mark.browser
ACTION = {"X-Stepscope-Action": "test"}


@pytest.fixture(autouse=True)
def _healthy(lab):
    yield
    requests.delete(f"{lab.url}/faults", headers=ACTION, timeout=5)


def step_number(page):
    return int(re.search(r"Step (\d+)", page.locator("#step-told").inner_text()).group(1))


def test_the_step_moves_by_itself(opened):
    """The picture changes, and so does the step that it is of."""
    page = opened()
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#step-told")).to_contain_text("Step ")
    before, picture = step_number(page), page.locator("#step").screenshot()
    expect(page.locator("#step-told")).not_to_contain_text(f"Step {before}:")
    assert step_number(page) > before
    assert page.locator("#step").screenshot() != picture


def test_a_fault_started_by_clicking_is_marked_read_aloud_and_stopped(opened):
    """The rank that is struck comes last, and is named; the fault is there after a reload, and gone once it is stopped."""
    page = opened()
    page.get_by_role("button", name="straggler", exact=True).click()
    page.get_by_label("Strikes").select_option(label="rank 2")
    page.get_by_role("button", name="severe 2.5").click()
    page.get_by_role("button", name="Start straggler").click()
    expect(page.locator("#active")).to_contain_text("straggler on rank 2, severity 2.5")
    expect(page.locator("#step-told")).to_contain_text("Rank 2 came last")
    expect(page.locator("#reading")).to_contain_text("Rank 2 holds everyone up, mostly in backward")
    page.reload()
    expect(page.locator("#active")).to_contain_text("straggler on rank 2, severity 2.5")
    page.get_by_role("button", name="Stop straggler on rank 2").click()
    expect(page.locator("#active li")).to_have_count(0)


def test_every_fault_of_the_catalogue_can_be_started_here(opened, lab):
    """Those that this job can have, each with its plain severity and its usual target."""
    page = opened()
    known = [fault["name"] for fault in requests.get(f"{lab.url}/faults/catalogue", timeout=5).json()["faults"]]
    assert set(known) < set(FAULTS)
    expect(page.locator("#fault-list > li")).to_have_count(len(known))
    assert page.locator("#fault-list > li > button").all_inner_texts() == known
    for name in known:
        page.locator(f"#fault-{name}").click()
        page.get_by_role("button", name=f"Start {name}").click()
        expect(page.locator("#active")).to_contain_text(name)
    plain = requests.get(f"{lab.url}/faults/catalogue", timeout=5).json()["faults"]
    for fault, active in zip(plain, requests.get(f"{lab.url}/faults", timeout=5).json(), strict=True):
        assert (active["fault"], active["target"]) == (fault["name"], fault["default_target"])
        assert active["severity"] == pytest.approx(fault["severity"]["plain"], rel=0.005)


def test_a_fault_is_found_by_what_it_does(opened):
    """Its name or its description."""
    page = opened()
    page.keyboard.press("f")
    page.keyboard.type("learning rate")
    expect(page.locator("#fault-list > li")).to_have_text(["gradient_explosion"])


def test_a_dashboards_link_leads_to_a_fault(opened):
    """What follows the #."""
    page = opened("/#hang")
    expect(page.get_by_role("button", name="Start hang")).to_be_visible()


def test_a_scenario_starts_all_its_faults(opened):
    """And all are stopped at once."""
    page = opened()
    page.get_by_text("Scenarios").click()
    page.get_by_role("button", name="Start Many small ones").click()
    expect(page.locator("#active li")).to_have_count(3)
    expect(page.locator("#active")).to_contain_text("10 min left")
    page.get_by_role("button", name="Stop all").click()
    expect(page.locator("#active li")).to_have_count(0)


def test_a_refusal_is_shown(opened):
    """In the server's words."""
    page = opened(tolerated="status of 422")
    page.get_by_role("button", name="straggler", exact=True).click()
    page.get_by_label("Strikes").evaluate(
        "select => select.append(new Option('rank 99', '{\"rank\": 99}', true, true))"
    )
    page.get_by_role("button", name="Start straggler").click()
    expect(page.locator("#error")).to_have_text("no rank 99; allowed: 0 to 3")


def test_pause_single_steps_and_keys(opened):
    """Space holds the picture, the arrows walk through what was kept, and space goes on."""
    page = opened()
    expect(page.locator("#step-told")).to_contain_text("Step ")
    page.wait_for_timeout(3000)
    expect(page.locator("#back")).to_be_enabled()
    page.keyboard.press("Space")
    expect(page.locator("#pause")).to_have_text("Play")
    held = step_number(page)
    page.wait_for_timeout(1500)
    assert step_number(page) == held
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert step_number(page) < held
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert step_number(page) >= held
    page.keyboard.press("Space")
    expect(page.locator("#pause")).to_have_text("Pause")


def test_rows_are_read_by_pointer_and_by_keyboard(opened):
    """Phases in milliseconds, of the row that is pointed at."""
    page = opened()
    expect(page.locator("#step-told")).to_contain_text("Step ")
    page.locator("#step").hover(position={"x": 300, "y": 40})
    expect(page.locator("#step-tip")).to_contain_text("rank 0")
    expect(page.locator("#step-tip")).to_contain_text("backward")
    page.locator("#step").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#step-tip")).to_contain_text("rank")
    assert page.locator("#pause").inner_text() == "Pause"


@pytest.mark.parametrize(("kind", "steps"), [("ring", 14), ("tree", 6)])
def test_the_all_reduce_is_counted(opened, kind, steps):
    """2(n − 1) steps of a ring, and 2·log2(n) of a tree, of eight GPUs."""
    page = opened()
    expect(page.locator("#link")).to_have_text("live")
    page.keyboard.press("a")
    page.locator("#allreduce-kind").select_option(kind)
    page.locator("#allreduce-gpus").fill("8")
    for _ in range(steps):
        page.locator("#allreduce-step").click()
    expect(page.locator("#allreduce-told")).to_contain_text(f"Step {steps} of")
    expect(page.locator("#allreduce-told")).to_contain_text("done: every GPU holds the whole sum")
    moved = {"ring": "1.75", "tree": "3.00"}[kind]
    expect(page.locator("#allreduce-told")).to_contain_text(f"{moved} times the gradients")


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("kind", ["ring", "tree"])
def test_the_all_reduce_that_is_shown_is_one(opened, kind, n):
    """At its end every GPU holds every piece with every GPU's share, and nobody has sent what he did not have."""
    page = opened("/straggler")
    complete = page.evaluate(
        """async ([kind, n]) => {
            const made = await import("/console/collective.js");
            let held = made.start(n);
            for (const step of made[kind](n)) held = made.after(held, step);
            return held.every((pieces) => pieces.every((sum) => sum.size === n));
        }""",
        [kind, n],
    )
    assert complete


def test_it_says_when_the_lab_is_gone_and_comes_back_by_itself(opened, lab):
    """Without a reload."""
    page = opened(tolerated="net::ERR_")
    expect(page.locator("#link")).to_have_text("live")
    lab.stop()
    expect(page.locator("#gone")).to_contain_text("The lab does not answer")
    lab.again()
    expect(page.locator("#gone")).to_be_hidden()
    expect(page.locator("#link")).to_have_text("live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/straggler", "/plan"])
def test_axe_finds_nothing(opened, path, scheme):
    """Contrast, names, roles and order, in both colour schemes."""
    page = opened(path, color_scheme=scheme)
    page.wait_for_timeout(2500)
    if path == "/":
        page.get_by_text("Scenarios").click()
        page.get_by_role("button", name="straggler", exact=True).click()
    found = Axe().run(page).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == []


def test_light_and_dark_are_a_matter_of_choice(opened):
    """What the system says, until somebody chooses; the choice lasts."""
    page = opened(color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.get_by_role("button", name="Light").click()
    light = page.evaluate(back)
    assert light != dark
    page.reload()
    assert page.evaluate(back) == light


def test_a_blind_drill_hides_what_strikes_and_its_reveal_is_told(opened):
    """Begun and revealed by clicking; meanwhile nothing can be started."""
    page = opened()
    page.get_by_text("Blind drill").click()
    page.get_by_role("button", name="Begin").click()
    expect(page.locator("#drill-text")).to_contain_text("A blind drill is on")
    expect(page.locator("#active")).to_have_attribute("data-empty", "A blind drill is on: nobody is told.")
    page.get_by_role("button", name="straggler", exact=True).click()
    expect(page.get_by_role("button", name="Start straggler")).to_be_disabled()
    page.get_by_role("button", name="Reveal").click()
    expect(page.locator("#drill-result")).to_be_visible()
    expect(page.locator("#drill-score")).not_to_be_empty()
    expect(page.get_by_role("button", name="Start straggler")).to_be_enabled()


@pytest.fixture(scope="module")
def blind_pod():
    made = Simulator(free_port(), "--preset", "pod", "--blind")
    yield made
    made.stop()


def test_a_larger_job_has_a_row_per_node_and_blind_mode_says_that_it_is_blind(chromium, blind_pod):
    """256 ranks on 32 nodes; a fault can be started, and all can be stopped, but none is listed."""
    watched = Watched(chromium, blind_pod.url)
    page = watched.go()
    expect(page.locator("#step-rows")).to_have_text("a row per node: its last rank to arrive")
    expect(page.locator("#step-told")).to_contain_text("of node-")
    page.get_by_role("button", name="straggler", exact=True).click()
    page.get_by_role("button", name="Start straggler").click()
    expect(page.locator("#active")).to_have_attribute("data-empty", "Blind: nobody is told which are active.")
    expect(page.locator("#reading")).to_contain_text("Rank 5 holds everyone up, mostly in backward", timeout=60_000)
    expect(page.locator("#active li")).to_have_count(0)
    page.get_by_role("button", name="Stop all").click()
    watched.close()
    assert (watched.errors, watched.foreign) == ([], [])


def test_a_standstill_is_told(opened):
    """MFU is nothing then, and the picture says for how long no step has ended."""
    page = opened()
    page.get_by_role("button", name="hang", exact=True).click()
    page.get_by_role("button", name="Start hang").click()
    expect(page.locator("#standstill")).to_have_text("No step ends any more.")
    expect(page.locator("#standstill-for")).to_contain_text("s ago")


def test_what_is_held_stays_and_its_numbers_are_of_it(opened):
    """A row that is pointed at shows the step that is on the picture, also after a step back."""
    page = opened()
    expect(page.locator("#step-told")).to_contain_text("Step ")
    expect(page.locator("#back")).to_be_enabled()
    page.keyboard.press("Space")
    page.locator("#step").focus()
    page.keyboard.press("ArrowDown")
    before, held = page.locator("#step-tip").inner_text(), step_number(page)
    page.keyboard.press("ArrowLeft")
    assert step_number(page) < held
    assert page.locator("#step-tip").inner_text() != before


def test_letters_can_be_switched_off(opened):
    """For those who dictate."""
    page = opened()
    page.keyboard.press("?")
    page.get_by_label("letters act").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    expect(page.locator("#allreduce-dialog")).to_be_hidden()
