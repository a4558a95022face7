const ROLES = { query: "Q", key: "K", value: "V" };
const LETTERS = "abcd"; // a column keeps its letter wherever it goes
const SWAPPED = [0, 2, 1, 3];
const CUTS = { order: "neighbouring columns", every: "every h-th column" };

function explore(root) {
  const { tokens, features, x, projections, projected, heads, row } = data;
  const find = (selector) => root.querySelector(selector);
  const names = named(tokens);
  const places = [...tokens.keys()];
  const width = projected.query[0].length;
  const columns = [...Array(width).keys()];
  const state = { h: heads[0], row, role: "query", cut: "order", permuted: false };

  // ---- The numbers ------------------------------------------------------------------------------

  /** The columns of W_Q, W_K and W_V as they stand now. */
  const order = () => (state.permuted ? SWAPPED : columns);

  /** Which head takes what stands at a place of the row of columns. */
  const taker = (place) => (state.cut === "order" ? Math.floor((place * state.h) / width) : place % state.h);

  /** The columns of each head, in order. */
  const dealt = () =>
    [...Array(state.h).keys()].map((head) => order().filter((_, place) => taker(place) === head));

  /** Scaled dot-product attention on some of the columns: weights [6, 6] and contexts [6, d_k]. */
  function attend(taken) {
    const { query, key, value } = projected;
    const weights = places.map((i) => {
      const scores = places.map(
        (j) => taken.reduce((sum, c) => sum + query[i][c] * key[j][c], 0) / Math.sqrt(taken.length),
      );
      const powers = scores.map(Math.exp); // the example's scores are small: none can overflow
      const total = powers.reduce((a, b) => a + b);
      return powers.map((power) => power / total);
    });
    const mix = (row, c) => row.reduce((sum, weight, j) => sum + weight * value[j][c], 0);
    return { taken, weights, contexts: weights.map((row) => taken.map((c) => mix(row, c))) };
  }

  // ---- The controls -----------------------------------------------------------------------------

  choice(".heads", heads, (h) => `${h}`, "h");
  choice(".words", places, (i) => tokens[i], "row", (i) => names[i]);
  choice(".roles", Object.keys(ROLES), (role) => ROLES[role], "role", (role) => `${ROLES[role]}, ${role}`);
  choice(".cuts", Object.keys(CUTS), (cut) => CUTS[cut], "cut");
  find(".permute input").addEventListener("change", (event) => change({ permuted: event.target.checked }));

  /** A row of radio buttons for one part of the state. */
  function choice(place, options, text, part, label = text) {
    for (const option of options) {
      const outer = put(find(place), "label");
      const radio = put(outer, "input", { type: "radio", name: part, "aria-label": label(option) });
      radio.checked = option === state[part];
      radio.dataset.option = option;
      outer.append(text(option));
      radio.addEventListener("change", () => change({ [part]: option }));
    }
  }

  function change(parts) {
    Object.assign(state, parts);
    paint();
    announce();
  }

  // ---- What is shown ----------------------------------------------------------------------------

  function paint() {
    const results = dealt().map(attend);
    find("figure").dataset.role = state.role;
    find(".cut").textContent = state.h > 1 ? `cut into ${state.h} heads` : "one head";
    find(".word").textContent = names[state.row];
    paintProduct();
    paintMaps(results);
    paintJoined(results);
    const many = (n, word) => `${n} ${word}${n > 1 ? "s" : ""}`;
    find(".sum").textContent =
      `${many(state.h, "head")} of width ${width / state.h}: ` +
      `${many(state.h, "picture")} of attention from the same ${width} columns.`;
    find(".meets").textContent = meets();
  }

  /** Show a number of the example, or a product of two: one decimal is all they have. */
  function exact(cell, number) {
    cell.dataset.value = number;
    cell.textContent = number.toFixed(1).replace("-", "−");
  }

  /** A cell of a column: its ground and its left edge say to which head it belongs. */
  function columnCell(line, place, element = "td", text = "") {
    const first = place > 0 && taker(place) !== taker(place - 1);
    const cell = put(line, element, { class: `column${first ? " first" : ""}` }, text);
    cell.style.setProperty("--head", taker(place));
    if (element === "th") cell.scope = "col";
    return cell;
  }

  /** The names of the heads over their columns, neighbours of one head together. */
  function brackets(line) {
    let last;
    columns.forEach((place) => {
      if (place && taker(place) === taker(place - 1)) last.colSpan += 1;
      else last = put(line, "th", { class: "bracket", scope: "colgroup" }, `head ${taker(place) + 1}`);
    });
  }

  function paintProduct() {
    const letter = ROLES[state.role];
    const [head, upper, lower] = ["thead", ".w", ".q"].map((part) => find(`.product ${part}`));
    for (const part of [head, upper, lower]) part.textContent = "";
    const top = put(head, "tr");
    put(top, "td", { class: "corner", colspan: 1 + features.length });
    brackets(top);
    features.forEach((feature, d) => {
      const line = put(upper, "tr");
      const name = put(line, "th", { scope: "row", colspan: 1 + features.length }, d ? "" : "W");
      if (!d) put(name, "sub", {}, letter);
      name.append(` ${feature}`);
      order().forEach((c, place) => exact(columnCell(line, place), projections[state.role][d][c]));
    });
    const middle = put(lower, "tr", { class: "names" });
    put(middle, "th", { scope: "col" }, "X");
    for (const feature of features) put(middle, "th", { scope: "col" }, feature);
    order().forEach((c, place) => columnCell(middle, place, "th", `${letter} ${LETTERS[c]}`));
    places.forEach((i) => {
      const line = put(lower, "tr", { class: i === state.row && state.role === "query" ? "chosen" : "" });
      put(line, "th", { scope: "row" }, tokens[i]);
      for (const number of x[i]) exact(put(line, "td", { class: "x" }), number);
      order().forEach((c, place) => exact(columnCell(line, place), projected[state.role][i][c]));
    });
  }

  function paintMaps(results) {
    const cards = find(".cards");
    cards.textContent = "";
    cards.style.setProperty("--across", Math.min(2, state.h));
    results.forEach(({ taken, weights }, head) => {
      const card = put(cards, "div", { class: "card" });
      put(card, "p", { class: "name" }, `head ${head + 1}: ${lettered(taken)}`);
      const label = `Weights of head ${head + 1}: queries down, keys across`;
      const table = put(card, "table", { "aria-label": label });
      const top = put(put(table, "thead"), "tr");
      put(top, "td");
      for (const token of tokens) put(top, "th", { scope: "col" }, token);
      const body = put(table, "tbody");
      places.forEach((i) => {
        const line = put(body, "tr", { class: i === state.row ? "chosen" : "" });
        put(line, "th", { scope: "row" }, tokens[i]);
        for (const weight of weights[i]) {
          const cell = put(line, "td", { class: "weight" });
          show(cell, weight);
          cell.textContent = two(weight).replace(/^0/, "");
          cell.style.setProperty("--w", weight);
        }
        line.addEventListener("click", () => choose(i));
      });
      const line = put(card, "p", { class: "most" });
      put(line, "b", {}, tokens[state.row]);
      line.append(` ${gaze(weights[state.row])}`);
    });
  }

  function choose(i) {
    find(`.words input[data-option="${i}"]`).checked = true;
    change({ row: i });
  }

  function paintJoined(results) {
    const [head, body] = ["thead", "tbody"].map((part) => find(`.joined ${part}`));
    for (const part of [head, body]) part.textContent = "";
    const [top, letters, line] = [head, head, body].map((part) => put(part, "tr"));
    results.forEach(({ taken, contexts }, n) => {
      put(top, "th", { class: "bracket", scope: "colgroup", colspan: taken.length }, `head ${n + 1}`);
      contexts[state.row].forEach((number, d) => {
        put(letters, "th", { scope: "col" }, LETTERS[taken[d]]);
        const cell = put(line, "td", { class: `column context${n && !d ? " first" : ""}` });
        cell.style.setProperty("--head", n);
        show(cell, number);
      });
    });
  }

  const lettered = (taken) =>
    `column${taken.length > 1 ? "s" : ""} ${taken.map((c) => LETTERS[c]).join(", ")}`;

  /** What a row of weights looks at most; words with equal weights share the first place. */
  function gaze(weights) {
    const largest = Math.max(...weights);
    const first = places.filter((j) => weights[j] > largest - 1e-9);
    if (first.length === tokens.length) return `looks at all words alike: ${two(largest)}`;
    return `looks most at ${first.map((j) => names[j]).join(", ")}: ${two(largest)}`;
  }

  /** What the cut and the permutation have done together, against the cut in order. */
  function meets() {
    if (state.cut === "order" && !state.permuted) return "This is the cut in order.";
    const now = dealt().map((taken) => taken.map((c) => LETTERS[c]).sort().join(""));
    const size = width / state.h;
    const before = now.map((_, head) => LETTERS.slice(head * size, (head + 1) * size));
    if (now.every((set) => before.includes(set))) {
      const moved = now.join() === before.join() ? "" : ", in another order";
      return `The same columns meet as in the cut in order, so the pictures are the same${moved}.`;
    }
    const listed = now.map((set) => [...set].join(" and ")).join("; ");
    const undo = state.permuted
      ? "Every h-th column without the permutation gives the same."
      : "Permute the columns, and the first pictures are back.";
    return `Other columns meet: ${listed}. So the pictures are others. ${undo}`;
  }

  let pending;
  function announce() {
    clearTimeout(pending);
    pending = setTimeout(() => {
      const results = dealt().map(attend);
      const told = results.map(
        ({ taken, weights }, head) => `head ${head + 1} (${lettered(taken)}) ${gaze(weights[state.row])}`,
      );
      const context = results.flatMap(({ contexts }) => contexts[state.row].map(two)).join(", ");
      find("[role=status]").textContent =
        `${find(".sum").textContent} Query ${names[state.row]}: ${told.join("; ")}. Context ${context}.`;
    }, 500);
  }

  paint();
}
