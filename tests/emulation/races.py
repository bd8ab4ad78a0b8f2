"""The racecheck reports kernels that lack a barrier, by file and line, and is silent where they have it.

races.py PROGRAM SOURCE   SOURCE: races.cu, of which the program is made
"""
import os
import re
import subprocess
import sys

program, source = sys.argv[1:]


def run(name, which, seed):
    environment = dict(os.environ, AMPK_EMULATION_SEED=str(seed))
    environment["TSAN_OPTIONS"] = os.environ.get("TSAN_OPTIONS", "") + ":atexit_sleep_ms=0"
    return subprocess.run([program, name, which], env=environment, stderr=subprocess.PIPE, text=True)


def check(name, accesses, seed):
    right, wrong = run(name, "right", seed), run(name, "wrong", seed)
    assert right.returncode == 0 and not right.stderr, (name, seed, right)
    assert wrong.returncode == 66 and "ThreadSanitizer: data race" in wrong.stderr, (name, seed, wrong)
    # The innermost call of each access, as in "Write of size 4 at ... #0 KERNEL races.cu:15:23"
    named = {int(line) for line in re.findall(r"#0 .*/races\.cu:(\d+)", wrong.stderr)}
    assert named == accesses, (name, seed, named, wrong.stderr)


lines = {}  # of the two accesses, by the kernel's name
with open(source) as text:
    for number, line in enumerate(text, 1):
        found = re.search(r"/\* race: (\w+) \*/", line)
        if found:
            lines.setdefault(found[1], []).append(number)
assert len(lines) == 4, lines

for name, accesses in lines.items():
    for seed in range(4):
        check(name, set(accesses), seed)
