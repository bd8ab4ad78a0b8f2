"""The report as one HTML file: page.html with its marks filled in."""

import json
from html import escape
from pathlib import Path

from bench_lib import ROOT, cores

TEMPLATE = Path(__file__).with_name("page.html")
SHARED = ROOT / "plugin/app/page"  # with the page of detector map


def verdicts(found):
    return "".join(f'<p class="verdict {verdict["verdict"]}">{escape(verdict["sentence"])}</p>'
                   for verdict in found["verdicts"])


def facts(found):
    settings = found["settings"]
    seeds = len(settings["seeds"])
    return escape(f"{settings['cfg']} on {settings['data']}: {seeds} seed{'s' if seeds > 1 else ''}, "
                  f"{settings['iterations']} iterations of {settings['batch']} images each, "
                  f"{settings['training_images']} training and {settings['images']} validation "
                  "images")


def table(found, rows):
    header = "".join(f"<th>{escape(variant['title'])}</th>" for variant in found["variants"])
    body = "".join(
        f'<tr class="{"sub" if title.startswith(("difference", "10 %")) else ""}">'
        f"<th>{escape(title)}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for title, cells in rows)
    return f"<table><thead><tr><th></th>{header}</tr></thead><tbody>{body}</tbody></table>"


def plan(found):
    if not found["plan"]:
        return ""
    rows = "".join(
        f"<tr><td>{layer['index']}</td><td>{escape(layer['type'])}</td>"
        f"<td>{' x '.join(map(str, layer['output']))}</td>"
        f'<td class="{"half" if "16" in layer["math"] else ""}">{escape(layer["math"])}</td>'
        f'<td class="{"half" if "16" in layer["storage"] else ""}">{escape(layer["storage"])}</td>'
        f"<td>{escape(layer['reason'])}</td></tr>" for layer in found["plan"]["layers"])
    share = 100 * found["plan"]["flop_reduced"] / (found["plan"]["flop"] or 1)
    memory = found["plan"]["activation_bytes_mixed"] / (found["plan"]["activation_bytes_fp32"] or 1)
    return (f"<p>{share:.1f} % of the arithmetic in reduced precision; activations take "
            f"{memory:.2f} of FP32's memory.</p>"
            '<div class="scroll"><table class="plan"><thead><tr><th>layer</th><th>type</th>'
            "<th>output</th><th>math</th><th>storage</th><th>why</th></tr></thead>"
            f"<tbody>{rows}</tbody></table></div>")


def pictures(shown):
    return "".join(
        '<figure><div class="pair">' + "".join(
            f'<div><img alt="{escape(title)}" src="{uri}"><span>{escape(title)}</span></div>'
            for title, uri in sample["shown"])
        + f"</div><figcaption>{escape(sample['image'])}, seed {sample['seed']}</figcaption></figure>"
        for sample in shown)


def notes(found):
    if not found["notes"]:
        return ""
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in found["notes"]) + "</ul>"


def how(found):
    host, settings = found["machine"], found["settings"]
    rows = [("machine", f"{host['cpu']}, {cores(host)}"),
            ("system", f"{host['system']}, Linux {host['kernel']}"),
            ("commit", host["commit"]),
            *host["versions"].items(),
            ("initial weights", settings["weights"] or "drawn by the seed"),
            *((variant["title"], variant["keys"]) for variant in found["variants"])]
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in rows)


def embed(found):
    """JSON that no browser takes for the end of its element."""
    return json.dumps(found).replace("<", "\\u003c")


def section(title, body, explained=""):
    """Nothing where there is no body."""
    if not body:
        return ""
    explained = f'<p class="explained">{explained}</p>' if explained else ""
    return f"<section><h2>{title}</h2>{explained}{body}</section>"


def make(found, rows, shown):
    parts = {
        "TITLE": escape(f"Mixed precision and FP32: {found['settings']['cfg']}"),
        "FACTS": facts(found), "VERDICTS": verdicts(found), "TABLE": table(found, rows),
        "PLAN": section("Precision plan", plan(found)),
        "SAMPLES": section("Detections", pictures(shown),
                           "The same validation images, evenly chosen from the list; boxes above "
                           "score 0.5, drawn by Darknet."),
        "NOTES": section("Notes", notes(found)), "HOW": how(found),
        "CFG": escape(found["settings"]["cfg_text"]), "DATA": embed(found),
        "STYLE": (SHARED / "page.css").read_text(), "SCRIPT": (SHARED / "page.js").read_text(),
    }
    text = TEMPLATE.read_text()
    for mark, value in parts.items():
        before, _, after = text.partition(f"<!--{mark}-->")
        text = before + value + after
    return text
