const MASK_NAMES = {
  none: "none: all may look",
  causal: "causal",
  window: "window of 2",
  padding: "padding: last 2 words",
};

function explore(root) {
  const { tokens, scores, values, masks } = data;
  const names = named(tokens);
  const find = (selector) => root.querySelector(selector);
  const places = [...tokens.keys()];
  let mask = masks[data.start].map((row) => [...row]);
  let at = [data.row, 0];
  let brush = null; // while a pointer is down: what it paints

  const buttons = Object.entries(MASK_NAMES).map(([name, text]) => {
    const button = put(find(".masks"), "button", { type: "button" }, text);
    button.addEventListener("click", () => {
      mask = masks[name].map((row) => [...row]);
      paint();
      say(`Mask: ${text}.`);
    });
    return [name, button];
  });

  const head = put(find("thead"), "tr");
  put(head, "td", {}, "key →\nquery ↓");
  tokens.forEach((token) => put(head, "th", { scope: "col" }, token));
  const cells = tokens.map((token, i) => {
    const line = put(find("tbody"), "tr");
    put(line, "th", { scope: "row" }, token);
    return tokens.map((_, j) => {
      const cell = put(line, "td", { class: "cell", role: "gridcell" });
      cell.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        brush = !mask[i][j];
        change(i, j, brush);
        cells[i][j].focus();
      });
      cell.addEventListener("keydown", (event) => steer(event, i, j));
      cell.addEventListener("focus", () => turnTo(i, j));
      return cell;
    });
  });
  // A finger keeps its events on the cell where it came down: ask what lies under it.
  find("tbody").addEventListener("pointermove", (event) => {
    if (brush === null) return;
    const under = root.elementFromPoint(event.clientX, event.clientY);
    const i = cells.findIndex((row) => row.includes(under));
    if (i >= 0) change(i, cells[i].indexOf(under), brush);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    addEventListener(end, () => {
      if (brush !== null) say(told());
      brush = null;
    });
  }

  function steer(event, i, j) {
    const last = tokens.length - 1;
    const to = {
      ArrowUp: [Math.max(0, i - 1), j],
      ArrowDown: [Math.min(last, i + 1), j],
      ArrowLeft: [i, Math.max(0, j - 1)],
      ArrowRight: [i, Math.min(last, j + 1)],
      Home: [i, 0],
      End: [i, last],
    }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (to) cells[to[0]][to[1]].focus();
    else if (event.key === " " || event.key === "Enter") {
      change(i, j, !mask[i][j]);
      say(told());
    } else return;
    event.preventDefault();
  }

  function change(i, j, may) {
    mask[i][j] = may;
    at = [i, j];
    paint();
  }

  function turnTo(i, j) {
    at = [i, j];
    paint();
  }

  /** Softmax over what a query may see; zeros for one that may look nowhere. */
  function weigh(i) {
    const seen = places.filter((j) => mask[i][j]);
    const highest = Math.max(...seen.map((j) => scores[i][j]));
    const powers = places.map((j) => (mask[i][j] ? Math.exp(scores[i][j] - highest) : 0));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((power) => (sum ? power / sum : 0));
  }

  function paint() {
    for (const [name, button] of buttons) {
      const same = JSON.stringify(masks[name]) === JSON.stringify(mask);
      button.setAttribute("aria-pressed", same);
    }
    places.forEach((i) => {
      const weights = weigh(i);
      places.forEach((j) => {
        const cell = cells[i][j];
        show(cell, weights[j]);
        if (!mask[i][j]) cell.textContent = "×";
        const state = mask[i][j] ? two(weights[j]) : "hidden";
        set(cell, {
          "aria-selected": mask[i][j],
          "aria-label": `${names[i]} looks at ${names[j]}: ${state}`,
          tabindex: i === at[0] && j === at[1] ? 0 : -1,
        });
        cell.style.setProperty("--w", weights[j]);
      });
    });
    describe(at[0]);
  }

  function describe(i) {
    const weights = weigh(i);
    const seen = places.filter((j) => mask[i][j]);
    const line = find(".row");
    line.textContent = "";
    put(line, "b", { class: "query" }, names[i]);
    if (!seen.length) {
      line.append(" may look nowhere. Its weights are 0, and so is its context.");
    } else {
      line.append(" takes ");
      line.append(mixture(seen.map((j) => weights[j]), seen.map((j) => tokens[j])));
    }
    const out = find(".context");
    out.textContent = "Its context is (";
    [0, 1].forEach((d) => {
      const number = weights.reduce((sum, weight, j) => sum + weight * values[j][d], 0);
      show(put(out, "span", { class: `c${d}` }), number);
      out.append(d ? ")." : ", ");
    });
  }

  function told() {
    return `${cells[at[0]][at[1]].getAttribute("aria-label")}. ${find(".row").textContent}`;
  }

  function say(text) {
    find("[role=status]").textContent = text;
  }

  paint();
}
