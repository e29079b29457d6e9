"""The straggler calculator's page in a browser."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def numbers(page):
    return {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in page.locator("#numbers tr").all()
    }


@pytest.mark.parametrize(
    ("address", "label", "shown"),
    [
        ("/straggler", "Efficiency", ["76.127 %", "76.13 %"]),
        ("/straggler", "Lost GPU-hours a day, of 1,536", ["367", "367"]),
        ("/straggler", "Lost GPU-hours in 30 days", ["11,001", "11,001"]),
        ("/straggler?gpus=1024", "Lost GPU-hours a day, of 24,576", ["5,867", "5,867"]),
        ("/straggler?gpus=1024", "Lost GPU-hours in 30 days", ["176,008", "176,008"]),
    ],
)
def test_the_published_numbers_are_on_the_page(opened, address, label, shown):
    """Of physics.md's table, from the address alone."""
    page = opened(address)
    expect(page.locator("#numbers tr")).not_to_have_count(0)
    assert numbers(page)[label] == shown


@pytest.mark.parametrize(("gpus", "expected"), [(8, "95.05 %"), (1024, "89.38 %")])
def test_variation_alone_costs_what_is_expected(opened, gpus, expected):
    """Nobody is slow, and all vary by 5 %."""
    page = opened(f"/straggler?gpus={gpus}&slow_gpus=0&variability=5")
    expect(page.locator("#numbers tr")).not_to_have_count(0)
    assert numbers(page)["Efficiency"][1] == expected


def test_an_experiment_is_a_click(opened):
    """Its question goes into the address, its answer onto the page, with what to notice; and back leads back."""
    page = opened("/straggler")
    page.get_by_role("button", name="A slower network hides it").click()
    expect(page.locator("#numbers")).to_contain_text("80.477 %")
    expect(page.locator("#useful")).to_have_text("45.6 %")
    expect(page.locator("#notice")).to_contain_text("falls from 55.7 to 45.6 %")
    assert page.url.endswith("/straggler?allreduce_ms=200")
    page.go_back()
    expect(page.locator("#numbers")).to_contain_text("76.127 %")
    expect(page.locator("#useful")).to_have_text("55.7 %")


def test_sliders_and_address_are_one_state(opened):
    """What a slider says can be sent to somebody."""
    page = opened("/straggler")
    expect(page.locator("#gpus")).to_have_value("64")
    page.get_by_label("Slow GPUs").last.fill("8")
    expect(page.locator("#slow_gpus")).to_have_value("8")
    page.wait_for_url("**/straggler?slow_gpus=8")
    assert page.get_by_label("GPUs", exact=True).last.get_attribute("aria-valuetext") == "64"
    again = opened(page.url.removeprefix(page.url.split("/straggler")[0]))
    expect(again.locator("#slow_gpus")).to_have_value("8")


def test_money_only_with_a_price(opened):
    """In the currency that was typed."""
    page = opened("/straggler")
    expect(page.locator("#numbers")).not_to_contain_text("Lost EUR")
    page.locator("#price").fill("2")
    page.locator("#currency").fill("EUR")
    expect(page.locator("#numbers")).to_contain_text("Lost EUR in 30 days")
    assert numbers(page)["Lost EUR in 30 days"] == ["22,001", "22,001"]
    page.get_by_role("button", name="The same among 1,024").click()
    expect(page.locator("#numbers")).to_contain_text("352,017")
    expect(page.locator("#notice")).to_contain_text("sixteen times as much")


def test_nonsense_is_said_to_be_some(opened):
    """And the last good answer stays."""
    page = opened("/straggler", tolerated="status of 422")
    page.locator("#slow_gpus").fill("65")
    expect(page.locator("#error")).to_contain_text("Slow_gpus is 65, and there are 64 GPUs")
    expect(page.locator("#numbers")).to_contain_text("76.127 %")
