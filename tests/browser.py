"""Pages of ours in a headless browser: what it draws, that its script runs through, that nothing is fetched."""

import shutil
import subprocess
from html.parser import HTMLParser


class Outside(HTMLParser):
    """Collects what a page would fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [value for key, value in attributes
                       if key in ("src", "href", "srcset", "action") and not value.startswith("data:")]


def drawn(page, profile):
    """The page after its script ran; None where there is no browser, which is said. profile: a folder for it."""
    text = page.read_text()
    parser = Outside()
    parser.feed(text)
    assert parser.found == [] and "<!--" not in text and "url(" not in text, parser.found
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if not program:
        print("SKIPPED the page in a browser: chromium is not here")
        return None
    done = subprocess.run(
        [program, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={profile}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=1200)
    assert "CONSOLE" not in done.stderr, done.stderr  # the page's policy forbids all requests
    assert 'data-drawn="yes"' in done.stdout, done.stdout[:500] + done.stderr[-2000:]
    return done.stdout
