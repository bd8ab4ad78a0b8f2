"""`detector map --page`: two weights files in one page, looked at in a browser; what it draws is what the tables say.

usage: map_page.py ROOT DARKNET
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import browser
import toyset

NAMES = ("red", "blue </script>")  # the toy set's first class, and one that would end the script
ROW = re.compile(r"^(\S.*?) +(\d+) +(\d+) +(\d+) +([\d.]+|-) +([\d.]+|-) +([\d.]+|-) +([\d.]+|-) +([\d.]+|-) +([\d.]+|-)$",
                 re.M)
KEYS = ("tp", "fp", "fn", "precision", "recall", "f1", "mean_iou", "best_f1", "best_thresh")


def run(folder, *words, status=0):
    done = subprocess.run([DARKNET, "detector", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    return done


def measure(folder, *words):
    return run(folder, "map", "toy.data", "toy.cfg", *words)


def shown(row, key):
    value = row[key]
    return "-" if value is None else str(value) if key in ("tp", "fp", "fn") else f"{value:.3f}"


def check_tables(said, found):
    """Class by class, then all, of one weights file after the other."""
    rows = ROW.findall(said)
    expected = [(name, *(shown(row, key) for key in KEYS)) for one in found
                for name, row in [*((row["name"], row) for row in one["counts"]["classes"]), ("all", one["counts"])]]
    assert rows == expected, (rows, expected)


def points(path):
    """Of an SVG path of lines."""
    return [tuple(map(float, pair.split(","))) for pair in re.split("[ML]", path)[1:]]


def check_curves(page, found):
    """Every point, by the axes that the page has drawn."""
    paths = [points(path) for path in re.findall(r'<path d="([^"]*)" fill="none"', page)]
    assert len(paths) == 2 * len(found), len(paths)
    for i, path in enumerate(paths):
        values = found[i % len(found)]["counts"]["precisions" if i < len(found) else "f1s"]
        assert len(path) == len(values) == 101, (len(path), len(values))
        (left, low), (right, high) = path[0], path[-1]
        assert right > left, path
        # What lies at 0 and 1: the grid's lowest and highest line.
        lines = [float(y) for y in re.findall(r'<line x1="34" x2="[\d.]+" y1="([\d.]+)"', page)]
        bottom, top = max(lines), min(lines)
        for k, ((x, y), value) in enumerate(zip(path, values)):
            assert abs(x - (left + (right - left) * k / 100)) < 1e-6, (k, x)
            assert abs((bottom - y) / (bottom - top) - value) < 1e-6, (k, y, value)


def check_confusions(page, found):
    """Rows are truths: hits, confusions and what was missed; what stands on nothing comes last."""
    titles = re.findall(r"<title>([^<]*) as ([^<]*): (\d+)</title>", page)
    per_page = 3 * 3 - 1
    assert len(titles) == per_page * len(found), titles
    for i, one in enumerate(found):
        cells = {(row, column): int(count) for row, column, count in titles[per_page * i:per_page * (i + 1)]}
        for row in one["counts"]["classes"]:
            name = row["name"].replace("<", "&lt;").replace(">", "&gt;")
            assert cells[name, name] == row["tp"], (cells, row)
            assert sum(count for (truth, _), count in cells.items() if truth == name) == row["truths"], (cells, row)
            assert sum(count for (_, as_what), count in cells.items() if as_what == name) == row["tp"] + row["fp"]


def check_page(folder, words):
    said = measure(folder, "backup/toy_final.weights", "backup/toy_100.weights", "--page", "map.html", *words).stdout
    found = json.loads(re.search(r'id="data">(.*?)</script>', (folder / "map.html").read_text(), re.S)[1])
    assert [one["settings"]["weights"] for one in found] == ["backup/toy_final.weights", "backup/toy_100.weights"]
    assert found[0]["counts"] != found[1]["counts"], "two trainings that cannot be told apart prove nothing"
    for weights, one in zip(("backup/toy_final.weights", "backup/toy_100.weights"), found):
        measure(folder, weights, "--json", "map.json", *words)
        assert json.loads((folder / "map.json").read_text()) == one
    check_tables(said, found)
    page = browser.drawn(folder / "map.html", folder / "browser")
    if page is None:
        return
    check_curves(page, found)
    check_confusions(page, found)
    assert page.count("<tr") == 1 + 2 * 3 and page.count(f"<td>{100 * found[1]['counts']['map']:.2f} %</td>") == 1, page


KEPT = '<meta name="generator" content="darknet-amp detector map page 1">'


def check_refused(folder):
    """Before the work: no network is built."""
    (folder / "kept.html").write_text(KEPT)
    for words, says in ((("none/map.html",), "--page: none/map.html: cannot write a file beside it"),
                        (("kept.html", "none.weights"), "none.weights: cannot read")):
        done = run(folder, "map", "toy.data", "toy.cfg", "backup/toy_final.weights", *words[1:], "--page", words[0],
                   status=1)
        assert says in done.stderr and "filters" not in done.stderr and not done.stdout, done.stderr
    assert (folder / "kept.html").read_text() == KEPT


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = toyset.make(Path(scratch) / "set", max_batches=200, net_keys="mixed_precision=1\nseed=1")
        (folder / "toy.names").write_text("\n".join(NAMES) + "\n")
        run(folder, "train", "toy.data", "toy.cfg")
        check_page(folder, ("--thresh", "0.05"))
        check_refused(folder)
        cfg = (folder / "toy.cfg").read_text()
        (folder / "toy.cfg").write_text(cfg.replace("[net]\n", "[net]\namp_dialect=fork\n"))
        check_page(folder, ("--thresh", "0.05", "--iou", "0.3", "--points", "11"))


main()
