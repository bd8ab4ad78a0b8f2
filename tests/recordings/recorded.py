"""Where recordings of AlexeyAB's Darknet lie, and what tests of them share."""

import os
import subprocess
import sys
from array import array
from pathlib import Path

SKIPPED = 77
HERE = Path(__file__).parent


def find(root, name):
    """The recorded file of this name: in AMP_RECORDINGS alone if that is set. Ends the test if there is none."""
    chosen = os.environ.get("AMP_RECORDINGS")
    folders = [Path(chosen)] if chosen else [HERE, Path(root).parent / "shared/recordings"]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    print(f"SKIPPED: no {name} in {' or '.join(str(folder) for folder in folders)}; AMP_RECORDINGS names another folder")
    sys.exit(SKIPPED)


def read_floats(path):
    floats = array("f", Path(path).read_bytes())
    if sys.byteorder == "big":
        floats.byteswap()
    return floats


def feed(program, lines):
    """What the program answers to these lines, as lines."""
    done = subprocess.run([program], input="\n".join(lines) + "\n", text=True, capture_output=True)
    assert done.returncode == 0, f"{program} ended with {done.returncode}: {done.stderr}"
    return done.stdout.splitlines()


def digits(numbers):
    """As text that reads back as the same floats."""
    return " ".join(f"{number:.9g}" for number in numbers)


class Cases:
    """Prints the name of each case with its outcome; tells at the end how many failed."""

    def __init__(self):
        self.passed = self.failed = 0

    def add(self, name, fault):
        """fault: what is wrong, or nothing."""
        print(f"{name}: {f'FAILED, {fault}' if fault else 'ok'}")
        if fault:
            self.failed += 1
        else:
            self.passed += 1

    def end(self):
        print(f"{self.passed} cases as recorded, {self.failed} otherwise")
        if self.passed + self.failed == 0:
            print("SKIPPED: the recordings have no such case")
            sys.exit(SKIPPED)
        sys.exit(1 if self.failed else 0)
