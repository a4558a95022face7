const POINT = "Point at a cell to read it.";
const GLIDE = 220;
const THICK = 0.84; // of a row: how thick a ribbon of weight 1 is
const DENSE = 26; // from this many tokens on, the heatmap names only those that are asked about
const THUMBNAIL = 24; // cells of a small picture, at most, each way
const NAMED = 3; // so many of the strongest are said in words

function explore(root) {
  const { layers, heads } = data;
  const find = (selector) => root.querySelector(selector);
  const figure = find("figure");
  const [layer, head, token] = data.start;
  const state = { sentence: 0, layer, head, token, side: "from" };
  let hovered = null; // a token under the mouse: shown, not chosen

  // ---- The numbers ------------------------------------------------------------------------------

  /** A sentence's tokens, their names, and the weights: one byte each, 255 for a weight of 1. */
  const sentences = data.sentences.map(({ tokens, weights, received }) => ({
    tokens,
    names: tokens.map((text, i) =>
      tokens.indexOf(text) === tokens.lastIndexOf(text) ? text : `${text} (token ${i + 1})`,
    ),
    places: [...tokens.keys()],
    weights: bytes(weights),
    received: new Uint16Array(bytes(received).buffer),
  }));
  const here = () => sentences[state.sentence];
  const size = () => here().tokens.length;
  const first = (l = state.layer, h = state.head) => (l * heads + h) * size();
  const weight = (i, j) => here().weights[(first() + i) * size() + j] / 255;

  /** The row of a query, or the column of a key. */
  const line = (place) =>
    here().places.map((other) => (state.side === "from" ? weight(place, other) : weight(other, place)));

  /** All that a key receives: summed before the weights were rounded. */
  const sum = (key) => (here().received[first() + key] * size()) / 65535;

  // ---- Pictures ---------------------------------------------------------------------------------

  let ramp;

  function paintHead(canvas, l, h) {
    const T = size();
    paintBytes(canvas, here().weights.subarray(first(l, h) * T, (first(l, h) + T) * T), T, T, ramp);
  }

  /** A small picture: of each patch its largest weight, so that a thin line stays a line. */
  function paintThumbnail(canvas, l, h) {
    const T = size();
    const patch = Math.ceil(T / THUMBNAIL);
    const side = Math.ceil(T / patch);
    const steps = new Uint8Array(side * side);
    const from = first(l, h);
    for (let i = 0; i < T; i++) {
      for (let j = 0; j < T; j++) {
        const k = Math.floor(i / patch) * side + Math.floor(j / patch);
        steps[k] = Math.max(steps[k], here().weights[(from + i) * T + j]);
      }
    }
    paintBytes(canvas, steps, side, side, ramp);
  }

  // ---- The parts --------------------------------------------------------------------------------

  const select = find("select");
  data.sentences.forEach(({ name }, number) => put(select, "option", { value: number }, name));
  find(".which").hidden = sentences.length === 1;
  select.addEventListener("change", () => {
    state.sentence = Number(select.value);
    state.token = Math.min(state.token, size() - 1);
    lay();
    announce();
  });

  const grid = find(".heads table");
  grid.style.setProperty("--across", heads);
  const top = put(put(grid, "thead"), "tr");
  put(top, "td");
  const acrossNames = [...Array(heads).keys()].map((h) =>
    put(top, "th", { scope: "col", "aria-label": `head ${h + 1}` }, `${h + 1}`),
  );
  const body = put(grid, "tbody");
  const downNames = [];
  const pictures = [...Array(layers).keys()].map((l) => {
    const row = put(body, "tr");
    downNames.push(put(row, "th", { scope: "row", "aria-label": `layer ${l + 1}` }, `${l + 1}`));
    return [...Array(heads).keys()].map((h) => {
      const cell = put(row, "td", { role: "gridcell", "aria-label": `layer ${l + 1}, head ${h + 1}` });
      put(cell, "canvas");
      cell.addEventListener("click", () => cell.focus());
      cell.addEventListener("focus", () => turnTo(l, h));
      cell.addEventListener("keydown", (event) => steer(event, l, h));
      return cell;
    });
  });

  function steer(event, l, h) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = {
      ArrowUp: [Math.max(0, l - 1), h],
      ArrowDown: [Math.min(layers - 1, l + 1), h],
      ArrowLeft: [l, Math.max(0, h - 1)],
      ArrowRight: [l, Math.min(heads - 1, h + 1)],
      Home: [l, 0],
      End: [l, heads - 1],
    }[event.key];
    if (!to) return;
    pictures[to[0]][to[1]].focus();
    event.preventDefault();
  }

  function turnTo(l, h) {
    if (state.layer === l && state.head === h) return;
    Object.assign(state, { layer: l, head: h });
    paint();
    announce();
  }

  for (const radio of root.querySelectorAll(".sides input")) {
    radio.addEventListener("change", () => choose(state.token, radio.value));
  }

  // ---- A sentence's own parts -------------------------------------------------------------------

  let rows = { from: [], to: [] };
  let ribbons = [];
  let labels = { from: [], to: [] };

  /** Lay out the chosen sentence: its tokens on both sides, a ribbon for each, the map's edges. */
  function lay() {
    const { tokens, names, places } = here();
    const T = size();
    const [row, letters] = T <= 14 ? ["1.9rem", "1rem"] : T <= 28 ? ["1.5rem", "0.9375rem"] : ["1.2rem", "0.8125rem"];
    for (const [name, text] of [["--row", row], ["--letters", letters], ["--rows", T]]) {
      figure.style.setProperty(name, text);
    }
    figure.classList.toggle("dense", T > DENSE);
    for (const side of ["from", "to"]) {
      const list = find(`.tokens.${side}`);
      list.textContent = "";
      rows[side] = places.map((i) => {
        const label = put(list, "label");
        const number = put(label, "span", { class: "number" });
        const radio = put(label, "input", { type: "radio", name: side, "aria-label": names[i] });
        put(label, "span", { class: "word", title: tokens[i], "data-text": tokens[i] }, tokens[i]);
        radio.addEventListener("change", () => choose(i, side));
        // The mouse steps through the side that is asked; across the other it only reads.
        label.addEventListener("pointerenter", (event) => {
          if (event.pointerType === "mouse" && side === state.side) hover(i);
        });
        return { label, number, radio };
      });
    }
    const edges = { from: find(".queries"), to: find(".keys") };
    for (const side of ["from", "to"]) {
      edges[side].textContent = "";
      labels[side] = tokens.map((token) => put(edges[side], "span", { "data-text": token }, token));
    }
    const svg = find(".ribbons svg");
    svg.textContent = "";
    set(svg, { viewBox: `0 0 1 ${T}` });
    ribbons = places.map(() => draw(svg, "path"));
    drawn = null;
    find(".read").textContent = POINT;
    hovered = null;
    paintThumbnails();
    paint();
  }

  for (const list of root.querySelectorAll(".tokens")) {
    list.addEventListener("pointerleave", () => hover(null));
  }

  const cells = find(".cells");
  const under = (event) => {
    const box = cells.getBoundingClientRect();
    const place = (part) => Math.min(size() - 1, Math.max(0, Math.floor(part * size())));
    return [place((event.clientY - box.top) / box.height), place((event.clientX - box.left) / box.width)];
  };
  cells.addEventListener("pointermove", (event) => {
    const [i, j] = under(event);
    const at = find(".cell");
    at.hidden = false;
    place(at, j, i, 1, 1);
    find(".read").textContent =
      `Row ${here().names[i]}, column ${here().names[j]}: ` +
      `${here().names[i]} looks at ${here().names[j]} with ${two(weight(i, j))}.`;
    hover(state.side === "from" ? i : j);
  });
  cells.addEventListener("pointerleave", () => {
    find(".cell").hidden = true;
    find(".read").textContent = POINT;
    hover(null);
  });
  cells.addEventListener("click", (event) => {
    const [i, j] = under(event);
    choose(state.side === "from" ? i : j, state.side);
  });
  find(".cell").hidden = true;

  function place(box, x, y, width, height) {
    const part = (number) => `${(100 * number) / size()}%`;
    Object.assign(box.style, { left: part(x), top: part(y), width: part(width), height: part(height) });
  }

  function choose(token, side) {
    if (side !== state.side) drawn = null;
    Object.assign(state, { token, side });
    hovered = null;
    paint();
    announce();
  }

  function hover(token) {
    if (token === hovered) return;
    hovered = token;
    paint();
  }

  // ---- What is shown ----------------------------------------------------------------------------

  function paintThumbnails() {
    pictures.forEach((row, l) => row.forEach((cell, h) => paintThumbnail(cell.firstChild, l, h)));
  }

  function paint() {
    const { names } = here();
    const asked = hovered ?? state.token;
    const other = state.side === "from" ? "to" : "from";
    const weights = line(asked);
    figure.dataset.side = state.side;
    find("#look").textContent = `Layer ${state.layer + 1}, head ${state.head + 1}`;
    for (const radio of root.querySelectorAll(".sides input")) radio.checked = radio.value === state.side;
    pictures.forEach((row, l) =>
      row.forEach((cell, h) => {
        const on = l === state.layer && h === state.head;
        set(cell, { "aria-selected": on, tabindex: on ? 0 : -1 });
      }),
    );
    downNames.forEach((name, l) => name.classList.toggle("on", l === state.layer));
    acrossNames.forEach((name, h) => name.classList.toggle("on", h === state.head));

    const largest = Math.max(...weights);
    rows[state.side].forEach(({ label, number, radio }, i) => {
      radio.checked = i === state.token;
      label.classList.toggle("asked", i === asked);
      label.style.removeProperty("--w");
      number.textContent = "";
      delete number.dataset.value;
    });
    rows[other].forEach(({ label, number, radio }, i) => {
      radio.checked = false;
      label.classList.remove("asked");
      label.style.setProperty("--w", weights[i]);
      show(number, weights[i]);
      if (weights[i] < 0.005) number.textContent = ""; // a column of 0.00 says less than an empty one
      number.classList.toggle("strong", weights[i] === largest && largest > 0);
    });

    labels[state.side].forEach((label, i) => label.classList.toggle("on", i === asked));
    labels[other].forEach((label, i) => label.classList.toggle("on", weights[i] === largest && largest > 0));
    const band = find(".band");
    if (state.side === "from") place(band, 0, asked, size(), 1);
    else place(band, asked, 0, 1, size());
    paintHead(find(".cells canvas"), state.layer, state.head);
    tell(find(".sum"), asked, weights);
    turn(asked, weights);
  }

  // ---- Ribbons ----------------------------------------------------------------------------------

  let drawn = null;
  let halt = () => {};

  /** Let the ribbons glide to where they belong; at once after a change of sentence or side. */
  function turn(asked, weights) {
    halt();
    const before = drawn;
    if (!before) return paintRibbons(asked, weights);
    const between = (a, b, t) => a + t * (b - a);
    halt = glide(GLIDE, (t) =>
      paintRibbons(
        between(before.asked, asked, t),
        weights.map((weight, i) => between(before.weights[i], weight, t)),
      ),
    );
  }

  /** At the token asked about the ribbons lie one upon the other; together they are one row thick at most. */
  function paintRibbons(asked, weights) {
    drawn = { asked, weights };
    const total = weights.reduce((a, b) => a + b, 0);
    const scale = THICK / Math.max(1, total);
    let y = asked + 0.5 - (scale * total) / 2;
    weights.forEach((weight, i) => {
      const near = [y, y + scale * weight];
      const far = [i + 0.5 - (THICK * weight) / 2, i + 0.5 + (THICK * weight) / 2];
      y = near[1];
      const [[a, b], [c, d]] = state.side === "from" ? [near, far] : [far, near];
      set(ribbons[i], {
        d: `M 0 ${a} C 0.5 ${a} 0.5 ${c} 1 ${c} V ${d} C 0.5 ${d} 0.5 ${b} 0 ${b} Z`,
        opacity: weight < 0.005 ? 0 : 0.4 + 0.5 * weight,
      });
    });
  }

  // ---- In words ---------------------------------------------------------------------------------

  function tell(line, asked, weights) {
    const { names, places } = here();
    const from = state.side === "from";
    line.textContent = "";
    put(line, "b", { class: from ? "query" : "key" }, names[asked]);
    const order = [...places].sort((a, b) => weights[b] - weights[a]);
    const strongest = order.slice(0, NAMED).filter((i, rank) => !rank || weights[i] >= 0.05);
    const largest = weights[order[0]];
    const alike = size() > 1 && largest - weights[order.at(-1)] <= 1.5 / 255;
    if (!largest && (from || sum(asked) < 0.005)) {
      line.append(from ? " may look nowhere: its weights are all 0." : " is looked at by no token.");
      return;
    }
    if (!largest) {
      line.append(" gets less than 0.01 from each token.");
    } else if (alike) {
      line.append(` ${from ? "looks at all tokens" : "is looked at by all tokens"} nearly alike: ${two(largest)}.`);
    } else {
      line.append(from ? " looks most at " : " is looked at most by ");
      strongest.forEach((i, rank) => {
        if (rank) line.append(rank === 1 ? ", then " : " and ");
        put(line, "b", {}, names[i]);
        line.append(`\u00a0${two(weights[i])}`);
      });
      line.append(".");
    }
    if (!from) {
      line.append(` A column need not sum to 1: this one sums to ${two(sum(asked))}.`);
      return;
    }
    const rest = 1 - strongest.reduce((total, i) => total + weights[i], 0);
    const others = size() - strongest.length;
    if (!alike && rest >= 0.005) {
      line.append(others > 1 ? ` The other ${others} share ${two(rest)}.` : ` The other one gets ${two(rest)}.`);
    }
    line.append(" A row sums to 1.");
  }

  let waiting = null;

  /** Say what was chosen once the reader rests. */
  function announce() {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      find("[role=status]").textContent = `${find("#look").textContent}. ${find(".sum").textContent}`;
    }, 400);
  }

  // ---- Begin ------------------------------------------------------------------------------------

  // A canvas keeps the colours it was painted in.
  inColours(figure, (colours) => {
    const begun = ramp !== undefined;
    ({ ramp } = colours);
    if (begun) {
      paintThumbnails();
      paintHead(find(".cells canvas"), state.layer, state.head);
    } else lay();
    paintBytes(find(".scale canvas"), [...Array(256).keys()], 256, 1, ramp);
  });
}
