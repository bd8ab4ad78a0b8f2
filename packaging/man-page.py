"""Makes the manual page darknet-amp(1) from what the program says about itself.

usage: man-page.py PROGRAM VERSION PAGE.gz
"""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

ABOUT = """Darknet, and a plugin that trains its networks in mixed precision. The line mixed_precision=1 under
[net] of a cfg turns it on. All of Darknet's commands are there as they always were; this page has those that are
new, and those that do more than Darknet's own."""


def output_of(program, words):
    done = subprocess.run([program, *words], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode or not done.stdout:
        sys.exit(f"man-page: {' '.join(words)}: status {done.returncode}: {done.stderr[-300:]}")
    return done.stdout.rstrip("\n")


def help_of(program, words):
    return output_of(program, [*words, "--help"])


def commands(text):
    """[["amp", "plan"], ...]: those that the program's own list has, which all take --help."""
    found = [words.split() for words in re.findall(r"\bdarknet ([a-z]+ [a-z]+(?:-[a-z]+)?)\b", text)]
    if not found:
        sys.exit(f"man-page: amp --help lists no command: {text}")
    return found


def roff(text):
    """No word of it is taken for a command of roff, and a hyphen can be copied as the minus that it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text)


def page(program, version):
    listed = help_of(program, ["amp"])
    parts = [f'.TH DARKNET\\-AMP 1 "" "darknet\\-amp {version}" "User Commands"',
             ".SH NAME", "darknet\\-amp \\- Darknet with training in mixed precision",
             ".SH DESCRIPTION", roff(ABOUT), ".SH COMMANDS", ".nf", roff(listed), ".fi"]
    for words in commands(listed):
        parts += [f'.SH "darknet {roff(" ".join(words))}"', ".nf", roff(help_of(program, words)), ".fi"]
    parts += [".SH CFG KEYS", ".nf", roff(output_of(program, ["amp", "keys"])), ".fi"]
    return "\n".join(parts) + "\n"


program, version, target = Path(sys.argv[1]), *sys.argv[2:]
Path(target).write_bytes(gzip.compress(page(program, version).encode(), mtime=0))
