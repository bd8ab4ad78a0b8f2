"""What a test prints about something that it left out begins with SKIPPED: scripts/test.sh gathers such lines.

usage: skips.py ROOT
"""

import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
# The words in which such a line has been written so far; "left to Darknet" and the like are results.
LEAVES_OUT = re.compile(r"not tested|not compared|left out|not installed|not here|without TensorBoard|no GPU\b|is missing|"
                        r"does not run on|skipped:", re.I)
PRINTS = re.compile(r"""\b(?:print|printf|puts)\(\s*f?(["'])(.*?)(?<!\\)\1""", re.S)


def wrong(text):
    """Lines that say it in other words."""
    return [said for _, said in PRINTS.findall(text) if LEAVES_OUT.search(said) and not said.startswith("SKIPPED")]


def main():
    assert wrong('print("PyTorch is not here")') and wrong("puts('no GPU');") and not wrong('print("SKIPPED x: not here")')
    found = [f"{path.relative_to(ROOT)}: {said}" for pattern in ("*.py", "*.c", "*.h")
             for path in sorted((ROOT / "tests").rglob(pattern)) if path != Path(__file__).resolve()
             for said in wrong(path.read_text(errors="replace"))]
    assert not found, "\n" + "\n".join(found)


main()
