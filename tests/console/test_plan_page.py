"""The scaling planner's page in a browser."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_a_plan_is_an_address(opened):
    """Its numbers are on the page, and so is what was asked."""
    page = opened(
        "/plan?model=GPT-3+175B&accelerator=A100+SXM&gpus=64&tp=8&pp=8&interleave=3&global_batch=64&microbatch=1"
    )
    expect(page.locator("#plan-shape")).to_contain_text(
        "GPT-3 175B, 174.6 B parameters, on 64 × A100 SXM: tensor 8 × pipeline 8"
    )
    expect(page.locator("#plan-bubble")).to_have_text("3.6 %")  # 7 stages by 64 microbatches of 3 chunks
    expect(page.locator("#tp")).to_have_value("8")
    expect(page.locator("#traffic tr")).to_have_count(2)


def test_what_does_not_fit_is_said_with_what_would(opened):
    """A click on the example."""
    page = opened("/plan")
    page.get_by_role("button", name="70 B: does it fit?").click()
    expect(page.locator("#fits")).to_contain_text("It does not fit")
    expect(page.locator("#memory")).to_contain_text("131 GiB")
    page.get_by_role("button", name="strategy zero3 and recompute full").click()
    expect(page.locator("#fits")).to_contain_text("It fits")
    expect(page.locator("#recompute")).to_have_value("full")


def test_an_address_that_makes_no_sense_leads_back_to_one_that_does(opened):
    """The fields and the plans to begin with are there, and what was wrong is said."""
    page = opened("/plan?gpus=abc", tolerated="status of 422")
    expect(page.locator("#error")).to_contain_text("Gpus: ")
    expect(page.locator("#gpus")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#model")).to_have_value("Llama 3 8B")
    page.get_by_role("button", name="One node with an NVSwitch").click()
    expect(page.locator("#error")).to_be_empty()
    expect(page.locator("#plan-shape")).to_contain_text("Llama 2 7B")


def test_what_has_no_field_is_named_and_can_be_dropped(opened):
    """A sequence length, from an example."""
    page = opened("/plan?sequence=2048")
    page.get_by_role("button", name="also asked: sequence=2048").click()
    expect(page.locator("#also button")).to_have_count(0)
    assert page.url.endswith("/plan")


def test_the_knee_is_named_and_its_numbers_are_in_the_table(opened):
    """Of strong scaling, where a batch is too small."""
    page = opened("/plan")
    page.get_by_role("button", name="A batch too small for its cluster").click()
    expect(page.locator("#knee-strong")).to_contain_text("The knee is at 8 GPUs")
    page.locator("#which").select_option("strong")
    expect(page.locator("#points tr")).to_have_count(8)
    expect(page.locator("#points tr.here")).to_contain_text("128")


def test_fields_that_make_no_sense_are_named(opened):
    """The last good plan stays."""
    page = opened("/plan", tolerated="status of 422")
    expect(page.locator("#plan-shape")).to_contain_text("Llama 3 8B")
    page.locator("#tp").fill("3")
    expect(page.locator("#error")).to_contain_text("tp")
    expect(page.locator("#plan-shape")).to_contain_text("tensor 1")
