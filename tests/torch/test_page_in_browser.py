"""The pages of a run and of a trace in Chromium, where that is installed: narrow and wide, on light
and dark."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import made_up_trace
import pytest
import torch

import dtr_alloc
from dtr_alloc.advise.page import page as page_of
from dtr_alloc.fragment import report
from dtr_alloc.torch import api

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")

FRAME = """<!doctype html>
<iframe id="page" style="width: {width}px; height: 4000px" srcdoc="{page}"></iframe>
<script>
onload = () => {{
  const page = document.getElementById("page").contentDocument, root = page.documentElement;
  for (const each of page.querySelectorAll("details")) each.open = true;
  const sticksOut = [...page.querySelectorAll("table, figure, p")]
    .filter(each => each.getBoundingClientRect().right > root.clientWidth + 1);
  const pictures = [...page.querySelectorAll("svg, img")];
  const style = getComputedStyle(page.body);
  const shownSize = text => {{
    const drawn = text.getScreenCTM();
    return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(drawn.a, drawn.b);
  }};
  const found = {{
    outside: [root.scrollWidth - root.clientWidth, ...sticksOut.map(each => each.outerHTML)],
    pictures: pictures.map(each => each.getBoundingClientRect().width),
    color: style.color,
    background: style.backgroundColor,
    textSizes: [...page.querySelectorAll("svg text")].map(shownSize),
    inPictures: [...page.querySelectorAll("svg text")].map(each => getComputedStyle(each).fill),
  }};
  document.body.textContent = "found" + JSON.stringify(found) + "!";
}};
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(16)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    settings: dict[str, Any] = {
        "report": str(tmp_path_factory.mktemp("page") / "run.html"),  # which wants a timeline
        "heuristic": "lru",
        "thrash": "off",
    }
    with dtr_alloc.session("14MiB", device="cpu", **settings):
        for _ in range(4):
            layers(torch.ones(1024, 256)).tanh().sum().backward()
            optimizer.step()
        timeline = api.active().timeline
    return page_of(dtr_alloc.stats(), {}, timeline)


@pytest.fixture(scope="module")
def page_of_a_trace() -> str:
    found = report.reports("a job", made_up_trace.a_life(devices=1))
    return report.page(found, maps=True)


def shown(page: str, width: int, scheme: str, folder: Path) -> dict[str, Any]:
    """What Chromium makes of a page, that wide."""
    page = page.replace("color-scheme: light dark", f"color-scheme: {scheme}")
    (folder / "frame.html").write_text(FRAME.format(width=width, page=html.escape(page)))
    line = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            f"--user-data-dir={folder / 'profile'}", (folder / "frame.html").as_uri()]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    found = re.search(r"found(\{.*\})!", done.stdout, re.DOTALL)
    assert found, done.stderr
    result: dict[str, Any] = json.loads(html.unescape(found[1]))
    return result


def lightness(color: str) -> float:
    return sum(map(float, re.findall(r"\d+", color)[:3])) / 3 / 255


@pytest.mark.parametrize("width", [360, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("of", "pictures"), [("page", 6), ("page_of_a_trace", 4)])
def test_all_is_seen(of, pictures, tmp_path, width, scheme, request):
    found = shown(request.getfixturevalue(of), width, scheme, tmp_path)
    assert found["outside"] == [0]
    assert len(found["pictures"]) == pictures
    assert min(found["pictures"]) > 300
    assert min(found["textSizes"]) > 7.9
    dark, light = sorted((lightness(found["color"]), lightness(found["background"])))
    assert dark < 0.15
    assert light > 0.85
    assert (lightness(found["background"]) < 0.5) == (scheme == "dark")
    assert set(found["inPictures"]) == {found["color"]}
