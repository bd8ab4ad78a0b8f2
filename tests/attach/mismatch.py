"""A Darknet of another kind than the plugin was built for is refused, with a message that says why.

usage: mismatch.py FIXED_TRAINING_STOCK LIBDARKNET_AMP [OTHER_LIBRARY "words of the message"]...
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def main():
    program, plugin, pairs = sys.argv[1], sys.argv[2], sys.argv[3:]
    assert pairs and len(pairs) % 2 == 0
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "set")
        weights = folder / "out.weights"
        for library, words in zip(pairs[::2], pairs[1::2]):
            env = dict(os.environ, LD_PRELOAD="%s %s" % (plugin, library))
            run = subprocess.run([program, folder / "toy.cfg", "1", weights], env=env,
                                 capture_output=True, text=True)
            assert run.returncode == 1, "%s: status %d\n%s" % (library, run.returncode, run.stderr)
            assert words in run.stderr, "%s: no \"%s\" in\n%s" % (library, words, run.stderr)
            assert not weights.exists()


main()
