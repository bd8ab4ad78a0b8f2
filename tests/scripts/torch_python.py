"""A Python that has PyTorch, for tests of what needs one."""

import subprocess
import sys


def python_with_torch():
    for python in (sys.executable, "/usr/bin/python3"):
        if not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
            return python
    return None
