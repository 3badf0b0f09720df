"""A headless browser for the page of `detops serve`."""

import shutil
from contextlib import contextmanager

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Chromium's sandbox needs privileges that containers lack.
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage")


def find_browser():
    """Returns the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def browsing():
    """Runs a Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        yield browser
        browser.close()
