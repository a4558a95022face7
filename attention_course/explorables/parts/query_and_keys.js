const KEY_PLANE = { x: [-2.3, 4.3], y: [-2.3, 2.3] };
const VALUE_PLANE = { x: [-1.5, 2.85], y: [-0.33, 2.7] };
const QUERY_RANGE = { x: [-2, 4], y: [-2, 2] };
const DIVISORS = [0.1, 8];
const SLIDER_STEPS = 86; // the slider is logarithmic
const WIDTH = 360;

// ---- The four steps: score, scale, softmax, mix -------------------------------------------------

function attend(query, keys, values, divisor) {
  const scores = keys.map((key) => query[0] * key[0] + query[1] * key[1]);
  const scaled = scores.map((score) => score / divisor);
  const top = Math.max(...scaled); // subtracting it changes no weight, and exp cannot overflow
  const raised = scaled.map((score) => Math.exp(score - top));
  const total = raised.reduce((a, b) => a + b);
  const weights = raised.map((r) => r / total);
  const context = [0, 1].map((d) => weights.reduce((sum, w, i) => sum + w * values[i][d], 0));
  const entropy = -weights.reduce((sum, w) => sum + (w > 0 ? w * Math.log(w) : 0), 0);
  return { scores, scaled, weights, context, entropy };
}

/** The corners of the convex hull, in order (Andrew's monotone chain). */
function hull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const turn = (o, a, b) => (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  const half = (list) => {
    const chain = [];
    for (const point of list) {
      while (chain.length > 1 && turn(chain.at(-2), chain.at(-1), point) <= 0) chain.pop();
      chain.push(point);
    }
    return chain.slice(0, -1);
  };
  return [...half(sorted), ...half(sorted.reverse())];
}

// ---- The planes ---------------------------------------------------------------------------------

/** Draw a plane's frame, axes and ticks; return its maps between numbers and pixels. */
function plane(svg, { x, y }) {
  const unit = WIDTH / (x[1] - x[0]);
  const height = unit * (y[1] - y[0]);
  const px = (point) => [(point[0] - x[0]) * unit, (y[1] - point[1]) * unit];
  set(svg, { viewBox: `0 0 ${WIDTH} ${height}` });
  draw(svg, "rect", { class: "frame", width: WIDTH, height, rx: 6 });
  const [ox, oy] = px([0, 0]);
  draw(svg, "line", { class: "axis", x1: 0, y1: oy, x2: WIDTH, y2: oy });
  draw(svg, "line", { class: "axis", x1: ox, y1: 0, x2: ox, y2: height });
  const between = ([low, high]) => {
    const ticks = [];
    for (let tick = Math.ceil(low); tick <= high; tick++) if (tick) ticks.push(tick);
    return ticks;
  };
  const tickAt = (tick, at) => draw(svg, "text", { class: "tick", ...at }, `${tick}`.replace("-", "−"));
  for (const tick of between(x))
    tickAt(tick, { x: px([tick, 0])[0], y: height - 5, "text-anchor": "middle" });
  for (const tick of between(y))
    if (px([0, tick])[1] < height - 20) tickAt(tick, { x: 5, y: px([0, tick])[1] + 4 });
  const number = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = WIDTH / box.width / unit;
    return [x[0] + (event.clientX - box.left) * scale, y[1] - (event.clientY - box.top) * scale];
  };
  return { px, number };
}

/** Name the points: the outer ones outside, others above. Points that coincide share a name. */
function label(svg, px, points, tokens) {
  const found = new Map();
  points.forEach((point, i) => {
    const place = point.map((p) => p.toFixed(6)).join();
    found.set(place, [...(found.get(place) ?? []), i]);
  });
  const middle = [0, 1].map((d) => points.reduce((sum, p) => sum + p[d], 0) / points.length);
  const corners = hull(points);
  for (const shared of found.values()) {
    const point = points[shared[0]];
    const [x, y] = px(point);
    const outer = corners.some((corner) => corner.join() === point.join());
    const away = outer ? point.map((p, d) => p - middle[d]) : [0, 1];
    const [dx, dy] = away.map((a) => a / Math.hypot(...away));
    const anchor = dx > 0.4 ? "start" : dx < -0.4 ? "end" : "middle";
    const at = { x: x + 12 * dx, y: y - 17 * dy + 4, "text-anchor": anchor };
    draw(svg, "text", { class: "name", ...at }, shared.map((i) => tokens[i]).join(", "));
  }
}

// ---- The figure ---------------------------------------------------------------------------------

function explore(root) {
  const { tokens, queries, keys, values } = data;
  const find = (selector) => root.querySelector(selector);
  const names = named(tokens);
  const rootOfWidth = Math.sqrt(keys[0].length);
  const state = { query: queries[data.start], divisor: rootOfWidth };
  const clamp = (number, [low, high]) => Math.min(high, Math.max(low, number));

  // Left: keys and query
  const left = find(".keys svg");
  const leftPlane = plane(left, KEY_PLANE);
  const origin = leftPlane.px([0, 0]);
  const level = draw(left, "line", { class: "level" });
  const levelName = draw(left, "text", { class: "tick name" }, "score 0");
  const keyHalos = keys.map((key) => halo(left, leftPlane.px(key)));
  for (const key of keys) {
    const [x, y] = leftPlane.px(key);
    draw(left, "line", { class: "key-arrow", x1: origin[0], y1: origin[1], x2: x, y2: y });
    draw(left, "rect", { class: "key-mark", x: x - 5, y: y - 5, width: 10, height: 10 });
  }
  const arrow = draw(left, "line", { class: "query-arrow", x1: origin[0], y1: origin[1] });
  label(left, leftPlane.px, keys, tokens);
  const handle = draw(left, "g", {
    class: "handle",
    tabindex: 0,
    role: "slider",
    "aria-roledescription": "point on a plane",
    "aria-label": "Query",
    "aria-valuemin": QUERY_RANGE.x[0],
    "aria-valuemax": QUERY_RANGE.x[1],
  });
  draw(handle, "circle", { class: "grip", r: 20 });
  draw(handle, "circle", { class: "knob", r: 11 });
  draw(handle, "text", { y: 4 }, "q");

  // Right: values and context
  const right = find(".values svg");
  const rightPlane = plane(right, VALUE_PLANE);
  const corners = hull(values).map((corner) => rightPlane.px(corner).join());
  draw(right, "polygon", { class: "hull", points: corners.join(" ") });
  const pulls = values.map((value) => {
    const [x1, y1] = rightPlane.px(value);
    return draw(right, "line", { class: "pull", x1, y1 });
  });
  const valueHalos = values.map((value) => halo(right, rightPlane.px(value)));
  for (const value of values) {
    const [x, y] = rightPlane.px(value);
    draw(right, "path", { class: "value-mark", d: `M ${x} ${y - 7} l 7 7 l -7 7 l -7 -7 z` });
  }
  label(right, rightPlane.px, values, tokens);
  const mark = draw(right, "g");
  draw(mark, "circle", { class: "context-mark", r: 9 });
  draw(mark, "circle", { class: "context-dot", r: 3.5 });
  draw(mark, "text", { class: "name strong", y: 25, "text-anchor": "middle" }, "context");

  function halo(svg, [cx, cy]) {
    return draw(svg, "circle", { class: "halo", cx, cy });
  }

  // Middle: the table
  const rows = tokens.map((token, i) => {
    const row = put(find("tbody"), "tr");
    put(row, "th", { scope: "row", "aria-label": names[i] }, token);
    const score = put(row, "td", { class: "score" });
    const scaled = put(row, "td", { class: "scaled" });
    const cell = put(put(row, "td"), "span", { class: "weight" });
    const weight = put(cell, "span");
    return { score, scaled, weight, bar: put(cell, "i") };
  });

  // ---- From the state to the page ---------------------------------------------------------------

  function paint() {
    const { query, divisor } = state;
    const { scores, scaled, weights, context, entropy } = attend(query, keys, values, divisor);
    const [x, y] = leftPlane.px(query);
    set(arrow, { x2: x, y2: y });
    set(handle, {
      transform: `translate(${x} ${y})`,
      "aria-valuenow": query[0],
      "aria-valuetext": `${two(query[0])}, ${two(query[1])}`,
    });
    paintLevel(query);

    weights.forEach((weight, i) => {
      const r = 30 * Math.sqrt(weight); // the halo's area is the weight
      set(keyHalos[i], { r });
      set(valueHalos[i], { r });
      const [cx, cy] = rightPlane.px(context);
      set(pulls[i], { x2: cx, y2: cy, "stroke-width": 8 * weight });
      show(rows[i].score, scores[i]);
      show(rows[i].scaled, scaled[i]);
      show(rows[i].weight, weight);
      rows[i].bar.style.setProperty("--share", weight);
    });
    set(mark, { transform: `translate(${rightPlane.px(context)})` });

    const divided = atRoot() ? `${two(divisor)} = √d_k` : two(divisor);
    find("th.scaled").textContent = `÷ ${two(divisor)}`;
    paintControls(divided);
    paintSharpness(weights, entropy);
    paintContext(weights, context);
  }

  /** The line of score 0 runs through the origin, at a right angle to the query. */
  function paintLevel([a, b]) {
    const length = Math.hypot(a, b);
    level.style.display = levelName.style.display = length < 0.05 ? "none" : "";
    if (length < 0.05) return;
    const along = [-b / length, a / length];
    const reach = Math.min(...along.map((d, i) => 2.15 / Math.max(Math.abs(d), 1e-9)));
    const [x1, y1] = leftPlane.px(along.map((d) => -d * reach));
    const [x2, y2] = leftPlane.px(along.map((d) => d * reach));
    set(level, { x1, y1, x2, y2 });
    const [x, y] = y1 < y2 ? [x1, y1] : [x2, y2]; // the upper end
    const late = x > WIDTH - 60;
    set(levelName, { x: late ? x - 6 : x + 6, y: y + 12, "text-anchor": late ? "end" : "start" });
  }

  function paintControls(divided) {
    state.query.forEach((q, i) => {
      const input = find(`.q${i}`);
      if (root.activeElement !== input) input.value = +q.toFixed(2);
    });
    const typed = find(".typed");
    if (root.activeElement !== typed) typed.value = state.divisor.toFixed(2);
    const slider = find(".slider");
    slider.value = position(state.divisor);
    set(slider, { "aria-valuetext": divided });
    find(".root").setAttribute("aria-pressed", atRoot());
    buttons.forEach((button, i) => {
      const pressed = queries[i].every((q, d) => Math.abs(q - state.query[d]) < 1e-9);
      button.setAttribute("aria-pressed", pressed);
    });
  }

  function paintSharpness(weights, entropy) {
    const largest = Math.max(...weights);
    const line = find(".sharpness");
    line.textContent = "Largest weight ";
    show(put(line, "b", { class: "weights largest" }), largest);
    line.append(` (${tokens[weights.indexOf(largest)]}). Entropy `);
    show(put(line, "span", { class: "entropy" }), entropy);
    line.append(`: as spread out as `);
    show(put(line, "span", { class: "alike" }), Math.exp(entropy));
    line.append(` equal weights.`);
    const share = (Math.exp(entropy) - 1) / (tokens.length - 1);
    find(".spread span").style.width = `${100 * share}%`;
  }

  function paintContext(weights, context) {
    const line = find(".context");
    line.textContent = `context = ${mixture(weights, tokens)} = (`;
    show(put(line, "b", { class: "c0" }), context[0]);
    line.append(", ");
    show(put(line, "b", { class: "c1" }), context[1]);
    line.append(")");
  }

  // ---- From the reader to the state -------------------------------------------------------------

  const buttons = tokens.map((token, i) => {
    const attributes = { type: "button", "aria-label": `query of ${names[i]}` };
    const button = put(find(".words"), "button", attributes, token);
    button.addEventListener("click", () => glideTo(queries[i]));
    return button;
  });

  let halt = () => {};
  function moveTo(query) {
    halt();
    place(query);
  }
  function place([x, y]) {
    state.query = [clamp(x, QUERY_RANGE.x), clamp(y, QUERY_RANGE.y)];
    paint();
    announce();
  }
  function glideTo(target) {
    halt();
    const before = state.query;
    const between = (t) => target.map((q, d) => (t === 1 ? q : before[d] + t * (q - before[d])));
    halt = glide(500, (t) => place(between(t)));
  }
  function divideBy(divisor) {
    state.divisor = clamp(divisor, DIVISORS);
    paint();
    announce();
  }

  const ratio = Math.log(DIVISORS[1] / DIVISORS[0]);
  const position = (divisor) => (SLIDER_STEPS * Math.log(divisor / DIVISORS[0])) / ratio;
  const atRoot = () => Math.abs(state.divisor - rootOfWidth) < 1e-9;

  find(".slider").addEventListener("input", (event) => {
    const at = +event.target.value;
    const near = Math.abs(at - position(rootOfWidth)) < 0.5;
    divideBy(near ? rootOfWidth : DIVISORS[0] * Math.exp((ratio * at) / SLIDER_STEPS));
  });
  find(".typed").addEventListener("input", (event) => {
    if (event.target.valueAsNumber > 0) divideBy(event.target.valueAsNumber);
  });
  find(".root").addEventListener("click", () => divideBy(rootOfWidth));
  for (const [d, selector] of [".q0", ".q1"].entries()) {
    find(selector).addEventListener("input", (event) => {
      if (!Number.isFinite(event.target.valueAsNumber)) return;
      moveTo(state.query.map((q, i) => (i === d ? event.target.valueAsNumber : q)));
    });
  }
  for (const input of root.querySelectorAll("input")) input.addEventListener("blur", paint);

  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  handle.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const tenths = event.shiftKey ? 5 : 1;
    moveTo(state.query.map((q, d) => (Math.round(q * 10) + tenths * step[d]) / 10));
  });

  // A finger drags the handle only, so that the page still scrolls; a mouse may press anywhere.
  left.addEventListener("pointerdown", (event) => {
    if (event.button || (event.pointerType !== "mouse" && !event.target.closest(".handle"))) return;
    event.preventDefault();
    handle.focus({ preventScroll: true, focusVisible: false });
    left.setPointerCapture(event.pointerId);
    drag(event);
    left.addEventListener("pointermove", drag);
  });
  // Chromium ignores touch-action on parts of an SVG, and would take the finger away to scroll.
  handle.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  const drop = () => left.removeEventListener("pointermove", drag);
  left.addEventListener("pointerup", drop);
  left.addEventListener("pointercancel", drop);
  function drag(event) {
    moveTo(leftPlane.number(event).map((q) => Math.round(q * 100) / 100));
  }

  let pending;
  function announce() {
    clearTimeout(pending);
    pending = setTimeout(() => {
      const { weights, context } = attend(state.query, keys, values, state.divisor);
      const largest = Math.max(...weights);
      find("[role=status]").textContent =
        `Query ${state.query.map(two).join(", ")}, scores divided by ${two(state.divisor)}. ` +
        `Largest weight ${two(largest)}, ${names[weights.indexOf(largest)]}. ` +
        `Context ${context.map(two).join(", ")}.`;
    }, 500);
  }

  for (const at of [DIVISORS[0], 1, rootOfWidth, DIVISORS[1]]) {
    const tick = put(find(".ticks"), "span", {}, at === rootOfWidth ? "√d" : at);
    if (at === rootOfWidth) put(tick, "sub", {}, "k");
    tick.style.left = `${(100 * position(at)) / SLIDER_STEPS}%`;
  }
  paint();
}
