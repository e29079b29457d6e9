"""A simulator, and a browser that looks at its pages and takes note of everything that it should not do."""

import shutil

import pytest
from playwright.sync_api import sync_playwright

from running_simulator import Simulator
from stepsim.serving import free_port
from watched import Watched


class Lab(Simulator):
    """One that can be ended, and started again at the same port."""

    def __init__(self, port, *arguments):
        self.port, self.arguments = port, arguments
        super().__init__(port, *arguments)

    def again(self):
        self.__init__(self.port, *self.arguments)


@pytest.fixture(scope="module")
def lab():
    made = Lab(free_port(), "--preset", "laptop")
    yield made
    if made.process.poll() is None:
        made.stop()


@pytest.fixture(scope="session")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, lab):
    """Opens a page of the lab; at the end none may have complained, but for what is ``tolerated``, or asked anybody else."""
    pages = []

    def open_page(path="/", **context):
        pages.append(Watched(chromium, lab.url, **context))
        return pages[-1].go(path)

    yield open_page
    for page in pages:
        page.close()
        assert page.errors == []
        assert page.foreign == []
