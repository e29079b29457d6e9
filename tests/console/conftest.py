"""A simulator, and a browser that looks at its pages and takes note of everything that it should not do."""

import re
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from running_simulator import Simulator
from stepsim.serving import free_port

WAIT_MS = 20_000
expect.set_options(timeout=WAIT_MS)


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


class Watched:
    """A page, and what it did wrong: errors on its console, and requests that go elsewhere than to the lab."""

    def __init__(self, browser, url, tolerated=None, **context):
        self.url, self.errors, self.foreign = url, [], []
        self.tolerated = re.compile(tolerated or "(?!)")
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **context})
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", lambda said: self.complain(said.text) if said.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complain(str(error)))
        self.page.on("request", lambda asked: self.ask(asked.url))

    def complain(self, text):
        if not self.tolerated.search(text):
            self.errors.append(text)

    def ask(self, url):
        if not url.startswith((f"{self.url}/", "data:")):
            self.foreign.append(url)

    def go(self, path="/"):
        self.page.goto(self.url + path)
        return self.page

    def close(self):
        self.context.close()


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
