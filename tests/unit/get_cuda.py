"""scripts/get-cuda.sh in a copy of its own, with a stand-in for pip. What the packages really hold is seen
where somebody calls it.

usage: get_cuda.py ROOT
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
FILES = ["cu13/bin/nvcc", "cu13/lib/libcudart.so.13", "cu13/lib/libcudart_static.a",
         "cu13/lib/libnvrtc-builtins.so.13.0", "cudnn/lib/libcudnn.so.9", "cudnn/include/cudnn.h"]

# Installs FILES to what follows --target; as $PIP says, without the last, or not at all.
PIP = """#!/bin/sh
[ "$1 $2" = "-m pip" ] || exit 9
[ "$3" = --version ] && exit
[ "$PIP" != fails ] || exit 3
while [ "$1" != --target ]; do shift; done
for file in $FILES; do
    mkdir -p "$2/nvidia/$(dirname "$file")"
    echo "$PIP" >"$2/nvidia/$file"
    chmod 755 "$2/nvidia/$file"
done
echo "$PIP_REQUIRE_VIRTUALENV$PIP_USER" >"$2/settings"
"""


def run(folder, pip, files=FILES):
    environment = dict(os.environ, PATH=f"{folder}/bin:{os.environ['PATH']}", PIP=pip, FILES=" ".join(files),
                       PIP_USER="1", PIP_REQUIRE_VIRTUALENV="1")
    return subprocess.run([folder / "scripts/get-cuda.sh"], env=environment, capture_output=True, text=True)


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in (folder / "build").iterdir())


def main():
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    for name in ("scripts", "bin"):
        (folder / name).mkdir()
    shutil.copy(ROOT / "scripts/get-cuda.sh", folder / "scripts")
    pip = folder / "bin/python3"
    pip.write_text(PIP)
    pip.chmod(0o755)

    # Nothing is left of what fails.
    done = run(folder, "fails")
    assert done.returncode == 1 and "pip could not load cuda-toolkit[" in done.stderr, done
    assert contents(folder) == [], contents(folder)
    for lacking in ("cu13/bin/nvcc", "cudnn/lib/libcudnn.so.9"):
        done = run(folder, "first", [file for file in FILES if file != lacking])
        assert done.returncode == 1 and "do not hold nvcc or cuDNN" in done.stderr, done
        assert contents(folder) == [], contents(folder)

    done = run(folder, "first")
    assert done.returncode == 0 and contents(folder) == ["build/toolkit"], done
    nvidia = folder / "build/toolkit/nvidia"
    for link, to in (("cu13/lib/libcudart.so", "libcudart.so.13"), ("cudnn/lib/libcudnn.so", "libcudnn.so.9"),
                     ("cu13/lib/libnvrtc-builtins.so", "libnvrtc-builtins.so.13.0"), ("cu13/lib64", "lib")):
        assert os.readlink(nvidia / link) == to, link
    assert (folder / "build/toolkit/settings").read_text() == "00\n", "pip's own settings would refuse --target"
    assert (folder / "build/toolkit").stat().st_mode & 0o777 == 0o755

    # It is there; another list of packages replaces it, but not by half of one.
    assert run(folder, "second").returncode == 0
    assert (nvidia / "cu13/bin/nvcc").read_text() == "first\n"
    (folder / "build/toolkit/packages").write_text("others\n")
    assert run(folder, "fails").returncode == 1
    assert (nvidia / "cu13/bin/nvcc").read_text() == "first\n"
    assert run(folder, "second").returncode == 0
    assert (nvidia / "cu13/bin/nvcc").read_text() == "second\n"
    assert contents(folder) == ["build/toolkit"], contents(folder)


with tempfile.TemporaryDirectory() as SCRATCH:
    main()
