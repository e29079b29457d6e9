"""A page in a browser that is watched for what it should not do."""

import re

from playwright.sync_api import expect

WAIT_MS = 20_000
expect.set_options(timeout=WAIT_MS)


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
