const HALF = [35, 21]; // of a node's box
const BESIDE = 6; // so far an edge runs beside the line between two nodes, to leave room for its opposite

function explore(root) {
  const { features, places, W, a, slope } = data;
  const nodes = [...data.nodes];
  const all = [...nodes.keys()];
  const find = (selector) => root.querySelector(selector);
  const edges = all.map(() => new Set()); // edges[i] holds those whom node i hears
  for (const [source, target] of data.edges) edges[nodes.indexOf(target)].add(nodes.indexOf(source));
  const radios = [...root.querySelectorAll(".sides input")];
  let chosen = nodes.indexOf(data.start);

  // ---- The numbers ------------------------------------------------------------------------------

  const bend = (number) => (number > 0 ? number : slope * number);
  const dot = (x, y) => x.reduce((sum, number, d) => sum + number * y[d], 0);

  /** How well a key answers a query; the two versions differ in where the bend stands. */
  function score(query, key) {
    const hidden = W.map((row) => dot(row, [...features[query], ...features[key]]));
    return radios[0].checked ? bend(dot(a, hidden)) : dot(a, hidden.map(bend));
  }

  /** Softmax over the edges that come in: weights by node, none where there is no edge. */
  function weigh(query) {
    const heard = [...edges[query]];
    const scores = heard.map((key) => score(query, key));
    const powers = scores.map((number) => Math.exp(number - Math.max(...scores)));
    const sum = powers.reduce((x, y) => x + y, 0);
    return new Map(heard.map((key, i) => [key, powers[i] / sum]));
  }

  const ranked = (query) => [...all].sort((i, j) => score(query, j) - score(query, i));
  const favourite = (query) => ranked(query).find((key) => edges[query].has(key));

  // ---- The graph --------------------------------------------------------------------------------

  const svg = find("svg");
  const arrows = draw(svg, "g", { "aria-hidden": true });
  const rubber = draw(svg, "line", { class: "rubber", visibility: "hidden" });
  const boxes = nodes.map((name, i) => {
    const [x, y] = places[i];
    const [w, h] = HALF;
    const node = draw(svg, "g", { class: "node", role: "button", transform: `translate(${x} ${y})` });
    draw(node, "rect", { class: "ring", x: -w - 5, y: -h - 5, width: 2 * w + 10, height: 2 * h + 10, rx: 13 });
    draw(node, "rect", { class: "box", x: -w, y: -h, width: 2 * w, height: 2 * h, rx: 9 });
    draw(node, "text", { class: "name", y: -3 }, name);
    draw(node, "text", { y: 13 }, features[i].map(one).join(", "));
    node.addEventListener("keydown", (event) => steer(event, i));
    return node;
  });

  function one(number) {
    return number.toFixed(1).replace("-", "−");
  }

  /** An arrow from border to border: a shaft of this width, and a head. */
  function arrow(source, target, width) {
    const [from, to] = [places[source], places[target]];
    const long = Math.hypot(to[0] - from[0], to[1] - from[1]);
    const [x, y] = [(to[0] - from[0]) / long, (to[1] - from[1]) / long];
    // Along the line, across it: where a point lies in the picture.
    const point = (along, across) =>
      [from[0] + x * along - y * (across + BESIDE), from[1] + y * along + x * (across + BESIDE)];
    const inside = (along, [cx, cy]) => {
      const [px, py] = point(along, 0);
      return Math.abs(px - cx) < HALF[0] + 3 && Math.abs(py - cy) < HALF[1] + 3;
    };
    let [start, end] = [0, long];
    while (inside(start, from)) start += 1;
    while (inside(end, to)) end -= 1;
    const head = 7 + width / 2;
    const [thin, thick] = [width / 2, width / 2 + 4];
    const corners = [
      [start, -thin], [end - head, -thin], [end - head, -thick], [end, 0],
      [end - head, thick], [end - head, thin], [start, thin],
    ].map(([along, across]) => point(along, across).map((number) => number.toFixed(1)));
    return { d: `M ${corners.join(" L ")} Z`, label: point((start + end) / 2, thick + 8 + 10 * Math.abs(y)) };
  }

  function drawArrows(weights) {
    arrows.textContent = "";
    const line = (source, target, width, seen) => {
      const { d, label } = arrow(source, target, width);
      draw(arrows, "path", { d, class: seen ? "arrow seen" : "arrow", "data-edge": nodes[source] + nodes[target] });
      return label;
    };
    all.filter((i) => i !== chosen).forEach((i) => edges[i].forEach((j) => line(j, i, 1.2, false)));
    const labels = [...weights].map(([j, weight]) => [line(j, chosen, 2 + 14 * weight, true), weight]);
    for (const [[x, y], weight] of labels) show(draw(arrows, "text", { class: "weight", x, y: y + 4.5 }), weight);
  }

  // ---- Hands ------------------------------------------------------------------------------------

  let drag = null; // the node from which a drag began

  const at = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const under = ({ x, y }) =>
    all.find((i) => Math.abs(places[i][0] - x) <= HALF[0] + 6 && Math.abs(places[i][1] - y) <= HALF[1] + 6);

  boxes.forEach((node, i) => {
    node.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      drag = i;
      svg.setPointerCapture(event.pointerId);
    });
    // Chromium ignores touch-action on parts of an SVG, and would take the finger away to scroll.
    node.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  });
  svg.addEventListener("pointermove", (event) => {
    if (drag === null) return;
    const { x, y } = at(event);
    const to = under({ x, y });
    const [x1, y1] = places[drag];
    set(rubber, { x1, y1, x2: x, y2: y, visibility: to === drag ? "hidden" : "visible" });
    boxes.forEach((node, i) => node.classList.toggle("under", i === to && i !== drag));
  });
  svg.addEventListener("pointerup", (event) => {
    if (drag === null) return;
    const [from, to] = [drag, under(at(event))];
    letGo();
    if (to === from) choose(to);
    else if (to !== undefined) toggle(from, to);
  });
  svg.addEventListener("pointercancel", letGo);

  function letGo() {
    drag = null;
    rubber.setAttribute("visibility", "hidden");
    for (const node of boxes) node.classList.remove("under");
  }

  /** The nearest node in the direction of an arrow key. */
  function beside(i, [x, y]) {
    const far = (j) => {
      const [dx, dy] = [places[j][0] - places[i][0], places[j][1] - places[i][1]];
      const along = dx * x + dy * y;
      return along > 8 ? along + 2 * Math.abs(dx * y + dy * x) : Infinity;
    };
    const best = all.reduce((x, y) => (far(y) < far(x) ? y : x));
    return far(best) < Infinity ? best : i;
  }

  function steer(event, i) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const way = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    if (way) focusOn(beside(i, way));
    else if (event.key === "Enter" || event.key === " ") choose(i);
    else if (event.key.toLowerCase() === "e") toggle(i, chosen);
    else return;
    event.preventDefault();
  }

  function focusOn(i) {
    boxes.forEach((node, j) => node.setAttribute("tabindex", i === j ? 0 : -1));
    boxes[i].focus();
  }

  function choose(i) {
    chosen = i;
    focusOn(i);
    paint();
    say();
  }

  /** Draw the edge, or remove it where it is; whom it reaches is chosen. */
  function toggle(source, target) {
    if (source === target) return;
    if (!edges[target].delete(source)) edges[target].add(source);
    chosen = target;
    paint();
    say(`Edge from ${nodes[source]} to ${nodes[target]} ${edges[target].has(source) ? "drawn" : "removed"}. `);
  }

  radios.forEach((radio) => radio.addEventListener("change", () => (paint(), say(`${radio.value}. `))));

  // ---- What is shown ----------------------------------------------------------------------------

  const rows = nodes.map((name, j) => {
    const row = put(find(".asked tbody"), "tr");
    const label = put(put(row, "th", { scope: "row" }), "label");
    const box = put(label, "input", { type: "checkbox" });
    put(label, "span", {}, name);
    box.addEventListener("change", () => toggle(j, chosen));
    const number = put(row, "td");
    const bar = put(row, "td");
    return { row, box, number, weight: put(bar, "span"), bar: put(bar, "i") };
  });
  const orders = nodes.map((name) => {
    const row = put(find(".all tbody"), "tr");
    put(row, "th", { scope: "row" }, `${name}:`);
    return all.map(() => put(row, "td"));
  });

  function paint() {
    const weights = weigh(chosen);
    drawArrows(weights);
    boxes.forEach((node, i) => {
      node.classList.toggle("chosen", i === chosen);
      node.classList.toggle("source", edges[chosen].has(i));
      const heard = [...edges[i]].sort().map((j) => nodes[j]);
      set(node, {
        "aria-label": `${nodes[i]}: hears ${heard.join(", ") || "nobody"}`,
        "aria-pressed": i === chosen,
      });
    });
    find("caption .query").textContent = nodes[chosen];
    rows.forEach(({ row, box, number, weight, bar }, j) => {
      const near = edges[chosen].has(j);
      row.hidden = j === chosen;
      row.classList.toggle("off", !near);
      box.checked = near;
      box.setAttribute("aria-label", `edge from ${nodes[j]} to ${nodes[chosen]}`);
      show(number, score(chosen, j));
      show(weight, weights.get(j) ?? 0);
      if (!near) weight.textContent = "no edge";
      bar.style.setProperty("--share", `${100 * (weights.get(j) ?? 0)}%`);
    });
    paintContext(weights);
    paintOrders();
  }

  function paintContext(weights) {
    const line = find(".context");
    line.textContent = "";
    put(line, "b", {}, nodes[chosen]);
    if (!weights.size) {
      line.append(" hears nobody: context 0.");
      return;
    }
    const heard = [...weights.keys()];
    line.append(" takes away ", mixture([...weights.values()], heard.map((j) => nodes[j])), ", its context: (");
    [0, 1].forEach((d) => {
      show(put(line, "span"), heard.reduce((sum, j) => sum + weights.get(j) * features[j][d], 0));
      line.append(d ? ")." : ", ");
    });
  }

  function paintOrders() {
    orders.forEach((cells, i) =>
      ranked(i).forEach((j, rank) => {
        cells[rank].textContent = nodes[j];
        cells[rank].className = edges[i].has(j) ? (j === favourite(i) ? "edge first" : "edge") : "";
      }),
    );
    const different = new Set(all.map((i) => ranked(i).join())).size;
    find(".order").textContent =
      different === 1
        ? `One order for all: ${ranked(0).map((i) => nodes[i]).join(" ")}. Who asks makes no difference to it.`
        : `${different} different orders: each node has its own.`;
    find(".favourites").textContent =
      "Looks most at: " +
      all.map((i) => `${nodes[i]}\u00a0→\u00a0${nodes[favourite(i)] ?? "nobody"}`).join(", ") + ".";
  }

  function say(before = "") {
    find("[role=status]").textContent = before + find(".context").textContent;
  }

  paint();
  boxes.forEach((node, i) => node.setAttribute("tabindex", i === chosen ? 0 : -1));
}
