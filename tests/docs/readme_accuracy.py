"""The tables of accuracies in the README and docs/results.md are those of the committed comparisons, and the
script says so where they are not.

usage: readme_accuracy.py ROOT
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
PAGES = ("README.md", "docs/results.md")


def update(root, *arguments, status=0):
    done = subprocess.run([sys.executable, "-B", root / "scripts/update-readme-accuracy.py", *arguments],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == status, done.stdout
    return done.stdout


def copy(root):
    (root / "scripts").mkdir()
    (root / "measurements").mkdir()
    (root / "docs").mkdir()
    for name in ("scripts/bench_lib.py", "scripts/update-readme-accuracy.py", *PAGES):
        shutil.copy(ROOT / name, root / name)
    for path in (ROOT / "measurements").glob("compare-*.json"):
        shutil.copy(path, root / "measurements")


def check_changes(root):
    """Another number in a report, or in a page, is another table."""
    before = {name: (root / name).read_text() for name in PAGES}
    path = min((root / "measurements").glob("compare-*.json"))
    found = json.loads(path.read_text())
    found["variants"][1]["accuracy"]["map50"]["mean"] = 0.123456
    path.write_text(json.dumps(found))
    assert "is not that of measurements/" in update(root, "--check", status=1)
    assert all((root / name).read_text() == before[name] for name in PAGES), "--check wrote"
    update(root)
    update(root, "--check")
    assert all("| 0.123 ± " in (root / name).read_text() for name in PAGES)
    check_spoilt(root, before)
    assert "unknown argument --chekc" in update(ROOT, "--chekc", status=1)


def check_spoilt(root, before):
    for name in PAGES:
        fresh = (root / name).read_text()
        (root / name).write_text(before[name])
        assert f"{name} is not that of measurements/" in update(root, "--check", status=1)
        (root / name).write_text(before[name].replace("<!-- accuracy:end -->", ""))
        assert f"{name} has no <!-- accuracy:begin -->" in update(root, status=1)
        (root / name).write_text(fresh)
    update(root, "--check")


def check_links():
    """The records that the tables name are there."""
    for name in PAGES:
        page = ROOT / name
        for link in re.findall(r"\]\(([^)#]+/compare-[^)#]+)\)", page.read_text()):
            assert (page.parent / link).is_file(), f"{name}: no {link}"


assert update(ROOT, "--check") == ""
with tempfile.TemporaryDirectory() as scratch:
    copy(Path(scratch))
    check_changes(Path(scratch))
check_links()
