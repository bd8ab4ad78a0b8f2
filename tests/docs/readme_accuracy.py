"""The README's table of accuracies is that of the committed comparisons, and the script says so where
it is not.

usage: readme_accuracy.py ROOT
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])


def update(root, *arguments, status=0):
    done = subprocess.run([sys.executable, "-B", root / "scripts/update-readme-accuracy.py", *arguments],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == status, done.stdout
    return done.stdout


def copy(root):
    (root / "scripts").mkdir()
    (root / "measurements").mkdir()
    for name in ("scripts/bench_lib.py", "scripts/update-readme-accuracy.py", "README.md"):
        shutil.copy(ROOT / name, root / name)
    for path in (ROOT / "measurements").glob("compare-*.json"):
        shutil.copy(path, root / "measurements")


def check_changes(root):
    """Another number in a report, or in the README, is another table."""
    readme = root / "README.md"
    before = readme.read_text()
    path = min((root / "measurements").glob("compare-*.json"))
    found = json.loads(path.read_text())
    found["variants"][1]["accuracy"]["map50"]["mean"] = 0.123456
    path.write_text(json.dumps(found))
    assert "is not that of measurements/" in update(root, "--check", status=1)
    assert readme.read_text() == before, "--check wrote"
    update(root)
    update(root, "--check")
    assert "| 0.123 ± " in readme.read_text()
    readme.write_text(before.replace("<!-- accuracy:end -->", ""))
    assert "has no <!-- accuracy:begin -->" in update(root, status=1)
    assert "unknown argument --chekc" in update(ROOT, "--chekc", status=1)


assert update(ROOT, "--check") == ""
with tempfile.TemporaryDirectory() as scratch:
    copy(Path(scratch))
    check_changes(Path(scratch))
