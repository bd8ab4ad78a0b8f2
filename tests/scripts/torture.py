"""scripts/torture.sh: its lists, its refusals, and some seconds of fuzzing that are gone on with.

usage: torture.py ROOT
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "scripts"))
import fuzz


def torture(*arguments, **environment):
    return subprocess.run([ROOT / "scripts/torture.sh", *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment})


def check_lists():
    text = torture("--list").stdout
    targets = re.findall(r"^amp_fuzz\((\w+)", (ROOT / "tests/fuzz/CMakeLists.txt").read_text(), re.MULTILINE)
    assert "cfg" in targets and len(targets) >= 10
    for name in targets:
        assert re.search(rf"^  {name}$", text, re.MULTILINE), text
    rows = re.findall(r"^  \w+: (.*)$", text, re.MULTILINE)
    assert rows and all("{seed}" in row for row in rows), text
    assert "--minutes N" in torture("--help").stdout


def check_refusals():
    for arguments, words in (((), "--minutes N"), (("--minutes", "soon"), "needs a number"),
                             (("--seed", "x"), "whole number"), (("--fuzz",), "needs a target"),
                             (("--hard",), 'unknown argument "--hard"')):
        done = torture(*arguments)
        assert done.returncode == 1 and words in done.stderr, (arguments, done.stderr)


def check_findings():
    """With a stand-in for libFuzzer that finds something in its second call: the count starts anew,
    and goes on from there."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        program = folder / "fuzz_data"
        program.write_text("#!/bin/sh\nn=$(cat %s/calls 2>/dev/null || echo 0)\necho $((n + 1)) >%s/calls\n"
                           "echo 'cov: 42'; echo 'stat::number_of_executed_units: 10'\n"
                           "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done\n"
                           "[ $n != 1 ] || exit 77\n" % (folder, folder))
        program.chmod(0o755)
        fuzz.PROGRAMS, fuzz.compiler = folder, lambda: "none"
        os.environ["AMP_FUZZ_STATE"] = str(folder / "state")
        output, account = io.StringIO(), folder / "state/data/account.json"
        with contextlib.redirect_stdout(output):
            assert fuzz.run("data", 1 / 60) == 1
            found = json.loads(account.read_text())
            assert found["findings"] == 1 and found["cpu_seconds"] == 0 and found["executions_in_all"] == 20
            assert fuzz.run("data", .001) == 0
        found = json.loads(account.read_text())
        assert found["cpu_seconds"] > .05 and found["executions"] == 10 and found["edges"] == 42, found
        assert "a new one, see" in output.getvalue(), output.getvalue()
        account.write_text("{")
        try:
            fuzz.run("data", 1)
        except fuzz.BenchError as error:
            assert "account.json: not JSON" in str(error)
        else:
            raise AssertionError("a damaged account was taken")


def check_corpus():
    """Every byte goes into a corpus and comes back; findings are kept once; seeds are unpacked anew."""
    inputs = {"all": bytes(range(256)), "escapes": b"\\x41\\n\n", "none": b""}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        fuzz.ROOT, fuzz.CORPUS = folder, folder / "corpus"
        pack, findings = folder / "corpus/data.txt", folder / "state/data/findings"
        findings.mkdir(parents=True)
        os.environ["AMP_FUZZ_STATE"] = str(folder / "state")
        fuzz.write_inputs(pack, inputs)
        assert fuzz.read_inputs(pack) == inputs and pack.read_bytes().count(b"\n") == 3
        for name, data in (("crash-1", b"new"), ("oom-2", b"new"), ("leak-3", b"")):
            (findings / name).write_bytes(data)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            fuzz.keep("data")
        assert "1 of 3" in output.getvalue() and not list(findings.iterdir()), output.getvalue()
        sha1 = "c2a6b03f190dfb2b4aa91f8af8d477a9bc3401dc"
        assert fuzz.read_inputs(pack) == {**inputs, sha1: b"new"}
        (folder / "seeds").mkdir()
        (folder / "seeds/old").write_text("")
        fuzz.unpack("data", folder / "seeds")
        assert {path.name: path.read_bytes() for path in (folder / "seeds").iterdir()} == fuzz.read_inputs(pack)


def has_fuzzer():
    """A clang that links libFuzzer, of Debian's packages: nothing is installed here."""
    try:
        installed = subprocess.run(["dpkg-query", "-W", "-f", "${Status},", "clang", "libclang-rt-dev"],
                                   capture_output=True, text=True).stdout
    except OSError:
        return False
    return installed.count(" installed,") == 2


def check_fuzzing():
    if not has_fuzzer():
        print("SKIPPED fuzzing: clang or libclang-rt-dev is not installed")
        return
    with tempfile.TemporaryDirectory() as state:
        account = Path(state) / "data/account.json"
        for minutes in (0.05, 0.1):
            done = torture("--fuzz", "data", "--minutes", str(minutes), AMP_FUZZ_STATE=state)
            assert done.returncode == 0, done.stdout + done.stderr
            found = json.loads(account.read_text())
            assert minutes * 60 <= found["cpu_seconds"] < minutes * 60 + 5, found
            assert found["executions"] > 100 and found["edges"] > 50 and not found["findings"], found
            assert "edges" in done.stdout.splitlines()[-1], done.stdout
        record = Path(state) / "record.md"
        subprocess.run([sys.executable, "-B", ROOT / "scripts/fuzz.py", "record", record], check=True,
                       env={**os.environ, "AMP_FUZZ_STATE": state})
        assert f"| data | 0.1 | {found['executions']} |" in record.read_text()


check_lists()
check_refusals()
check_findings()
check_fuzzing()
check_corpus()
