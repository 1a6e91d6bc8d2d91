"""The README's picture of the page: two PRMs on one solution, in a real browser.

Run: make screenshot     (needs chromium)
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

from prism_prm import example_folder
from prism_prm.files import atomic_file

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "page.png"
WIDTH, HEIGHT = 1180, 740


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIGURE)
    out = parser.parse_args().out
    prms = [word for name in ("base", "prism") for word in ("--prm", f"{name}={example_folder(name)}")]
    line = [sys.executable, "-m", "prism_prm", "serve", *prms, "--port", "0"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None, "it is a pipe"
            found = re.search(r"http://\S+:\d+", server.stderr.readline())
            assert found is not None, "the first line has the address"
            while httpx.get(f"{found[0]}/ready").status_code != 200:
                time.sleep(0.2)
            with atomic_file(out) as aside:
                aside.write_bytes(picture(found[0]))
        finally:
            server.terminate()
    print(f"{out}: {out.stat().st_size:,} bytes")


def picture(url: str) -> bytes:
    """A screenshot of the first view, which scores its example automatically."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(url)
        page.locator(".steps").wait_for()
        made: bytes = page.screenshot(animations="disabled")
        browser.close()
        return made


if __name__ == "__main__":
    main()
