"use strict";
// What the pages of `detector map` and of scripts/compare.sh share.

function make(tag, attributes, parent, text) {
  const svg = ["svg", "g", "path", "line", "rect", "circle", "text", "title"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function short(x) {
  if (x === null || x === undefined) return "–";
  if (x === 0 || !Number.isFinite(x)) return x === 0 ? "0" : "∞";
  const size = Math.abs(x);
  if (size >= 1e5 || size < 1e-3) return x.toExponential(1).replace("e+", "e");
  return String(+x.toPrecision(size >= 1000 ? 4 : 3));
}

// Round numbers from low to high.
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step / 1e6; k++)
    found.push(+(k * step).toPrecision(12));
  return found;
}

function placeTip(tip, parent, x, y) {
  tip.hidden = false;
  const room = parent.clientWidth - tip.offsetWidth;
  tip.style.left = Math.max(0, Math.min(room, x > room / 2 ? x - tip.offsetWidth - 12 : x + 12)) + "px";
  tip.style.top = y + "px";
}

/* ---- precision, recall and F1 of detectors ----
 *
 * found: [{title, colour, counts}], counts as in the JSON of `detector map`; all of the same classes. */

const CURVE_POINTS = 101;

function drawDetection(parent, found) {
  const names = found[0].counts.classes.map(c => c.name);
  const chooser = make("p", {}, parent);
  const charts = make("div", {class: "charts"}, parent);
  const select = make("select", {"aria-label": "class"});
  make("option", {value: -1}, select, `all ${names.length} classes`);
  names.forEach((name, k) => make("option", {value: k}, select, name));
  if (names.length > 1) chooser.append("Curves of ", select);
  const draw = () => {
    const of = f => +select.value < 0 ? f.counts : f.counts.classes[+select.value];
    const iou = found[0].counts.iou_thresh, thresh = found[0].counts.conf_thresh;
    charts.replaceChildren();
    const boxes = [0, 1].map(() => make("div", {class: "chart"}, charts));
    drawUnit(boxes[0], {title: `Precision over recall, IoU ${short(iou)}`, across: "recall",
      lines: found.map(f => ({...f, points: of(f).precisions}))});
    drawUnit(boxes[1], {title: "F1 over the score threshold", across: "threshold", rule: thresh,
      lines: found.map(f => ({...f, points: of(f).f1s, dot: [of(f).best_thresh, of(f).best_f1]}))});
    for (const f of found) drawConfusion(make("div", {class: "chart"}, charts), f);
  };
  select.onchange = draw;
  draw();
  return draw;
}

// Lines over 0..1 in both directions.
function drawUnit(box, {title, across, lines, rule}) {
  make("h3", {}, box, title);
  const left = 34, right = 10, top = 6, bottom = 34, height = 280, width = box.clientWidth;
  const x = v => left + v * (width - left - right), y = v => top + (1 - v) * (height - top - bottom);
  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title}, box);
  for (const v of [0, .2, .4, .6, .8, 1]) {
    make("line", {x1: left, x2: width - right, y1: y(v), y2: y(v), stroke: "var(--line)"}, svg);
    make("text", {x: left - 6, y: y(v) + 4, "text-anchor": "end"}, svg, v);
    make("text", {x: x(v), y: height - 18, "text-anchor": "middle"}, svg, v);
  }
  make("text", {x: x(.5), y: height - 2, "text-anchor": "middle"}, svg, across);
  if (rule !== undefined)
    make("line", {x1: x(rule), x2: x(rule), y1: top, y2: y(0), stroke: "var(--soft)",
      "stroke-dasharray": "2 3"}, svg);
  for (const line of lines) {
    make("path", {d: line.points.map((v, i) =>
      `${i ? "L" : "M"}${x(i / (CURVE_POINTS - 1))},${y(v)}`).join(""), fill: "none",
    stroke: line.colour, "stroke-width": 1.8, "stroke-linejoin": "round"}, svg);
    if (!line.dot || line.dot[0] === null) continue;
    const dot = make("circle", {cx: x(line.dot[0]), cy: y(line.dot[1]), r: 4.5, fill: "var(--back)",
      stroke: line.colour, "stroke-width": 2}, svg);
    make("title", {}, dot, `${line.title}: best F1 ${line.dot[1].toFixed(3)} at ${line.dot[0].toFixed(3)}`);
  }
  const tip = make("div", {class: "tip"}, box);
  tip.hidden = true;
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  svg.addEventListener("pointermove", event => {
    const place = svg.getBoundingClientRect();
    const at = ((event.clientX - place.left) * width / place.width - left) / (width - left - right);
    if (at < 0 || at > 1) { tip.hidden = true; return; }
    const i = Math.round(at * (CURVE_POINTS - 1));
    tip.replaceChildren(make("b", {}, null, `${across} ${(i / (CURVE_POINTS - 1)).toFixed(2)}`));
    for (const line of lines)
      make("div", {style: `color: ${line.colour}`}, tip, `${line.title}: ${line.points[i].toFixed(3)}`);
    placeTip(tip, box, event.clientX - place.left, 28);
  });
}

const MOST_CLASSES = 40;

// Rows of truths, columns of detections; the last row and column are for what has no counterpart.
function confusionOf(counts) {
  const n = counts.classes.length, rows = [];
  for (let i = 0; i <= n; i++) rows.push(new Array(n + 1).fill(0));
  counts.classes.forEach((c, k) => { rows[k][k] = c.tp; rows[k][n] = c.fn; rows[n][k] = c.fp; });
  for (const [truth, prediction, count] of counts.confusion) {
    rows[truth][prediction] = count;
    rows[truth][n] -= count;
    rows[n][prediction] -= count;
  }
  return rows;
}

function drawConfusion(box, {title, colour, counts}) {
  const n = counts.classes.length, all = confusionOf(counts);
  const errors = counts.classes.map((c, k) => [c.fn + c.fp, k]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const shown = errors.slice(0, MOST_CLASSES).map(e => e[1]).sort((a, b) => a - b);
  const places = [...shown, n], m = places.length;
  const name = (k, other) => k === n ? other : counts.classes[k].name;
  make("h3", {}, box, `What is taken for what: ${title}`);
  const width = box.clientWidth, left = Math.min(110, width / 3), top = 84;
  const cell = Math.min(56, (width - left - 4) / m), height = top + m * cell + 4;
  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `confusion matrix of ${title}`}, box);
  const cut = text => text.length > 16 ? text.slice(0, 15) + "…" : text;
  places.forEach((r, i) => {
    const sum = all[r].reduce((a, b) => a + b, 0);
    if (cell >= 9) {
      make("text", {x: left - 6, y: top + (i + .5) * cell + 4, "text-anchor": "end"}, svg, cut(name(r, "(nothing)")));
      const x = left + (i + .5) * cell, y = top - 6;
      make("text", {x, y, transform: `rotate(-45 ${x} ${y})`}, svg, cut(name(r, "(missed)")));
    }
    places.forEach((c, j) => {
      const value = all[r][c];
      if (r === n && c === n) return;
      const rect = make("rect", {x: left + j * cell, y: top + i * cell, width: cell - 1, height: cell - 1,
        style: `fill: ${value ? colour : "var(--panel)"}`, "fill-opacity": value ? .12 + .7 * value / sum : 1}, svg);
      make("title", {}, rect, `${name(r, "nothing")} as ${name(c, "nothing")}: ${value}`);
      if (cell >= 22 && value) make("text", {x: left + (j + .5) * cell, y: top + (i + .5) * cell + 4, "text-anchor": "middle",
        style: "fill: var(--text); pointer-events: none"}, svg, value);
    });
  });
  make("p", {class: "explained"}, box, "Rows: what is there; columns: what is found, at scores above "
    + `${short(counts.conf_thresh)}.` + (n > m - 1 ? ` The ${m - 1} of ${n} classes with most errors.` : ""));
}
