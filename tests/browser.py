"""A real browser for tests of pages, which are skipped where there is none."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

from support.clocks import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NO_BROWSER = "Chromium is not installed"

PHONE, DESKTOP = 390, 1280

# A page that shows another in a frame of some width and writes down what it sees. Windows of the
# browser cannot be as narrow as a phone; frames can.
HARNESS = """<!doctype html><title>harness</title>
<iframe src="{address}" style="width:{width}px;height:800px;border:0"></iframe>
<pre id="seen"></pre>
<script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(d => d.open = true);
  const out = [...page.body.querySelectorAll("*")]
    .filter(e => e.getBoundingClientRect().right > root.clientWidth + 0.5)
    .filter(e => !e.parentElement.closest(".scroll"))  // which shows the rest of it
    .map(e => e.tagName + "." + e.className);
  const numbers = [...page.querySelectorAll("td, tbody th")].flatMap(cell => {{
    const texts = page.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
    while (texts.nextNode()) for (const hit of texts.currentNode.data.matchAll(/-?[0-9][0-9.,e]*/g)) {{
      const range = page.createRange();
      range.setStart(texts.currentNode, hit.index);
      range.setEnd(texts.currentNode, hit.index + hit[0].length);
      found.push({{text: hit[0], lines: new Set([...range.getClientRects()].map(r => r.top)).size}});
    }}
    return found;
  }});
  document.getElementById("seen").textContent = JSON.stringify({{
    title: page.title, width: root.clientWidth, scroll: root.scrollWidth, out,
    broken: [...page.images].filter(i => !(i.complete && i.naturalWidth > 0)).length,
    images: page.images.length, text: page.body.innerText,
    small: [...page.querySelectorAll("p, td, th, figcaption")]
      .filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length,
    wrapped: [...page.querySelectorAll("th.id:not(.long) a")]
      .filter(e => e.getClientRects().length > 1).length,
    names: page.querySelectorAll("th.id:not(.long) a").length,
    numbers: numbers.length, torn: numbers.filter(n => n.lines > 1).map(n => n.text),
  }});
}});
</script>"""


def chromium(folder, *arguments):
    """Run the browser once, without a window and with an empty profile: its output, its console."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--allow-file-access-from-files",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--virtual-time-budget=20000",
            f"--user-data-dir={folder}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def seen(page, width, tmp_path):
    """What the browser makes of a page at some width, and its console."""
    harness = tmp_path / f"harness-{width}.html"
    harness.write_text(HARNESS.format(address=page.as_uri(), width=width), encoding="utf-8")
    dom, console = chromium(tmp_path / f"profile-{width}", "--dump-dom", harness.as_uri())
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.S)
    assert found, dom[-2000:]
    return json.loads(html.unescape(found[1])), console
