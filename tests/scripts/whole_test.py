"""scripts/test.sh with stand-ins for CMake, CTest and what else it calls: a part that fails does not keep the
others from running, and is named at the end.

usage: whole_test.py ROOT
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
TOOLS = ["awk", "basename", "cat", "dirname", "grep", "head", "mkdir", "nproc", "paste", "rm", "sed", "sh", "sort",
         "tail", "tr", "uniq", "xargs"]
# Each writes what it was called for, such as "build cuda", and fails where $FAILS names that.
CALLED = 'echo "$what" >>calls\n[ "$what" != "$FAILS" ] || { echo "CMake Error: $SAYS"; exit 1; }\n'
STANDINS = {
    "cmake": 'case $1 in --build) what="build $3" ;; *) what="configure $2" ;; esac\n'
             'mkdir -p build/cuda\n' + CALLED,
    "ctest": 'what="test $2"; [ "$2" = cpu ] && log=build/Testing/Temporary || log=build/$2/Testing/Temporary\n'
             'mkdir -p $log\necho "1/2 Testing: first\nSKIPPED part of $2: why\nSKIPPED part of $2: why\n2/2 Testing: second\n'
             'SKIPPED part of $2: why" >$log/LastTest.log\n' + CALLED,
    "clang-format": 'what=format\n[ "$1" = --version ] && { echo "version 14.0.6"; exit; }\n' + CALLED,
    "git": "printf 'a.c\\0'\n",
    "dpkg-query": "echo install ok installed\n",
    "nvcc": "echo compute_75\n",
    "python3": '[ "$1" = -c ] && exit 0\nwhat="$2 $3 cuobjdump"\n' + CALLED,  # -c: it has onnx
}


def run(*arguments, fails="", says="broken", without=()):
    """(status, what it called, its output)"""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "bin").mkdir()
        (folder / "scripts").mkdir()
        for tool in TOOLS:
            (folder / "bin" / tool).symlink_to(shutil.which(tool))
        for name in ("test.sh", "packages.sh", "preset.sh"):
            shutil.copy(ROOT / "scripts" / name, folder / "scripts")
        for name, text in (*STANDINS.items(), ("../scripts/get-darknet.sh", "exit 0\n")):
            if name not in without:
                path = folder / "bin" / name
                path.write_text("#!/bin/sh\n" + text)
                path.chmod(0o755)
        (folder / "calls").touch()
        # Not the toolkit of this machine: its nvcc would be found where it usually is.
        preset = folder / "scripts/preset.sh"
        preset.write_text(preset.read_text().replace("usual_cuda=/usr/local/cuda", "usual_cuda=/nowhere"))
        done = subprocess.run([folder / "scripts/test.sh", *arguments], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT,
                              env={"PATH": str(folder / "bin"), "FAILS": fails, "SAYS": says})
        return done.returncode, (folder / "calls").read_text().splitlines(), done.stdout


CPU = ["configure cpu", "build cpu", "test cpu"]
CUDA = ["configure cuda", "build cuda", "pip install cuobjdump", "test cuda"]

status, calls, said = run()
assert status == 0 and calls == ["format", *CPU, *CUDA], (calls, said)
*_, first, second, third, last = said.splitlines()  # all that was left out, at the end
assert last == "All passed" and all(line.startswith("SKIPPED ") for line in (first, second, third)), said
assert {"SKIPPED part of cpu: why (cpu: first, second)",
        "SKIPPED part of cuda: why (cuda: first, second)"} < {first, second, third}, said
assert said.count("SKIPPED") == 3, said
for part, fails, ran in (("formatting", "format", ["format", *CPU, *CUDA]),
                         ("preset cpu", "build cpu", ["format", *CPU[:2], *CUDA]),
                         ("preset cuda", "configure cuda", ["format", *CPU, *CUDA[:1]]),
                         ("preset cuda", "build cuda", ["format", *CPU, *CUDA[:2]]),
                         ("preset cuda", "test cuda", ["format", *CPU, *CUDA])):
    status, calls, said = run(fails=fails)
    assert status == 1 and calls == ran, (fails, calls, said)
    assert said.splitlines()[-1] == f"test.sh: FAILED: {part}", said
status, calls, said = run(fails="pip install cuobjdump")  # then one test is skipped, and says so
assert status == 0 and calls[-2:] == CUDA[-2:] and "pip could not load cuobjdump" in said, (calls, said)
status, calls, said = run("--asan", "--tsan", fails="test asan")
assert calls[-6:] == [f"{step} {preset}" for preset in ("asan", "tsan") for step in ("configure", "build", "test")]
assert status == 1 and said.splitlines()[-1] == "test.sh: FAILED: preset asan", said

# CUDA that is not there is no failure, unless it is required.
for lacking in ({"without": ["nvcc"]}, {"fails": "configure cuda", "says": "AMP_CUDA needs cuDNN 8 or 9"}):
    status, calls, said = run(**lacking)
    assert status == 0 and "SKIPPED cuda: " in said and calls[:4] == ["format", *CPU], (calls, said)
    status, _, said = run("--require-cuda", **lacking)
    assert status == 1 and said.splitlines()[-1] == "test.sh: FAILED: preset cuda", said
assert run("--asna")[0] == 1
