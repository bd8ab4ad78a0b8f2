"""The pages are true where a program can tell: links lead somewhere; files, tests, functions and variables that
they name are there; README.md is short.

usage: pages.py ROOT [BUILD]    with BUILD also the tests that docs/reliability.md names
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/*.md"))
README_LINES = 100
SOURCE = r"[a-z0-9_/-]+\.(?:cfg|cc|cmake|cu|c|h|json|md|py|sh|supp)"  # a name in capitals stands for something


def anchors(page):
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"no {link}"
        elif anchor and anchor not in anchors(target):
            yield f"{link}: no such heading"


def is_file(name, tracked):
    """From the root, from plugin/ or kernels/, or the end of some path."""
    return any(path == name or path.endswith("/" + name) for path in tracked)


def missing_files(page, tracked):
    """Sources in backticks; a folder in front of the name makes it exact."""
    for name in set(re.findall(rf"`({SOURCE})`", page.read_text())):
        if not is_file(name, tracked):
            yield f"no file {name}"


def missing_scripts(page):
    for name in set(re.findall(r"\bscripts/[a-z][\w.-]*\w", page.read_text())):
        if not (ROOT / name).exists():
            yield f"no {name}"


def known_names():
    """Names of ours that some source has: functions, keys, variables in the environment and in CMake."""
    command = ["grep", "-rhoIE", r"\b(amp|ampk|AMP|AMPK)_\w+", "plugin", "kernels", "tests", "scripts", "CMakeLists.txt"]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


def unknown_names(page, known):
    for name in set(re.findall(r"\b(?:amp|ampk|AMP|AMPK)_\w+\b", page.read_text())):
        if name not in known:
            yield f"no {name} in any source"


def missing_tests(build):
    """In the tables of docs/reliability.md the second column names tests."""
    # `ctest -N` would empty the log of the ctest that runs this.
    tests = set(re.findall(r"^add_test\(\[=*\[(\w+)", "".join(p.read_text() for p in Path(build).rglob("CTestTestfile.cmake")), re.M))
    assert tests, build
    text = (ROOT / "docs/reliability.md").read_text()
    for row in re.findall(r"^\| .*$", text, re.M):
        cell = row.split(" | ")[1]
        for name in re.findall(r"`(\w+\*?)`", cell):
            if name not in tests and not (name.endswith("*") and any(t.startswith(name[:-1]) for t in tests)):
                yield f"docs/reliability.md: no test {name}"


def main():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    tracked = listed.stdout.split("\0") if listed.returncode == 0 else [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    known = known_names()
    wrong = [f"{page.relative_to(ROOT)}: {what}" for page in PAGES
             for what in sorted((*broken_links(page), *missing_files(page, tracked), *missing_scripts(page),
                                 *unknown_names(page, known)))]
    lines = len((ROOT / "README.md").read_text().splitlines())
    if lines > README_LINES:
        wrong.append(f"README.md: {lines} lines, allowed: {README_LINES}")
    if sys.argv[2:]:
        wrong += missing_tests(sys.argv[2])
    assert not wrong, "\n" + "\n".join(wrong)
    print(f"{len(PAGES)} pages")


if __name__ == "__main__":
    main()
