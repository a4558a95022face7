const ALIKE = 0.98; // cos 11.5°
const TURN = 2 * Math.PI;
const WAVE_STEPS = 8; // points of the curve from one position to the next
const LISTED = 10; // positions named in a sentence, at most

function explore(root) {
  const { d_model, length, bases, largest_shift } = data;
  const find = (selector) => root.querySelector(selector);
  const clocks = [...Array(d_model / 2).keys()];
  const positions = [...Array(length).keys()];
  const state = {
    position: data.position,
    shift: data.shift,
    base: bases[0],
    used: clocks.map(() => true),
    chosen: 0,
  };

  // ---- The numbers ------------------------------------------------------------------------------

  const frequency = (i) => state.base ** ((-2 * i) / d_model);

  /** How alike the encodings of two positions so far apart are; without a clock all are the same. */
  function likeness(apart) {
    const used = clocks.filter((i) => state.used[i]);
    if (!used.length) return 1;
    return used.reduce((sum, i) => sum + Math.cos(frequency(i) * apart), 0) / used.length;
  }

  // ---- The parts --------------------------------------------------------------------------------

  for (const [name, last] of [["position", length - 1], ["shift", largest_shift]]) {
    const slider = find(`.${name} input`);
    slider.max = last;
    slider.value = state[name];
    slider.addEventListener("input", () => change(name, Number(slider.value)));
  }

  const cards = clocks.map((i) => {
    const card = put(find(".clocks"), "li");
    const label = put(card, "label");
    const box = put(label, "input", { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", () => {
      state.used[i] = box.checked;
      change();
    });
    label.append(` clock ${i + 1}`);
    const svg = draw(card, "svg", { viewBox: "-1.2 -1.2 2.4 2.4", "aria-hidden": true });
    draw(svg, "path", { class: "cross", d: "M -1 0 H 1 M 0 -1 V 1" });
    draw(svg, "circle", { class: "face", r: 1 });
    const hands = draw(svg, "g", { class: "hands" });
    const sector = draw(hands, "path", { class: "sector" });
    const then = draw(hands, "line", { class: "hand at-k" });
    const thenTip = draw(hands, "rect", { class: "tip at-k", width: 0.26, height: 0.26 });
    const now = draw(hands, "line", { class: "hand" });
    const nowTip = draw(hands, "circle", { class: "tip", r: 0.15 });
    const wave = put(card, "p", { class: "small" }, "wavelength ");
    const wavelength = put(wave, "span", { class: "wavelength" });
    const numbers = put(card, "p", { class: "numbers" });
    const [cos, sin] = ["cos", "sin"].map((name) => {
      put(numbers, "span", {}, name);
      return put(numbers, "span", { class: name });
    });
    const turn = put(put(card, "p", { class: "by small" }, "turn "), "span");
    return { card, sector, then, thenTip, now, nowTip, wavelength, cos, sin, turn };
  });

  choice(".base", bases, whole, (base) => {
    state.base = base;
    fillStrip();
  });
  choice(".chosen", clocks, (i) => `${i + 1}`, (i) => {
    state.chosen = i;
  });

  /** A row of radio buttons; the first is checked. */
  function choice(place, options, text, choose) {
    options.forEach((option, n) => {
      const label = put(find(place), "label");
      const radio = put(label, "input", { type: "radio", name: place });
      radio.checked = n === 0;
      label.append(text(option));
      radio.addEventListener("change", () => {
        choose(option);
        change();
      });
    });
  }

  const matrix = brackets("square", "R(ω·k)", 4);
  between("·");
  const before = brackets("at-p", "hand at p", 2);
  between("=");
  const after = brackets("at-k", "at p + k", 2);

  function brackets(role, name, count) {
    const part = put(find(".equation"), "div", { class: `part ${role}` });
    const box = put(part, "div", { class: "matrix" });
    put(part, "span", { class: "small" }, name);
    return [...Array(count)].map(() => put(box, "span"));
  }

  function between(sign) {
    put(find(".equation"), "span", { class: "sign-between" }, sign);
  }

  find(".strip").setAttribute(
    "aria-label",
    `${d_model} numbers for each of ${length} positions, the first clock’s fastest, the last one’s slowest.`,
  );
  const strip = find(".strip svg");
  set(strip, { viewBox: `0 0 ${length} ${d_model}` });
  const names = clocks.flatMap((i) => [`sin ${i + 1}`, `cos ${i + 1}`]); // the package's columns
  const rows = names.map((name, row) => {
    const group = draw(strip, "g");
    const cells = positions.map((x) => draw(group, "rect", { x, y: row, width: 1, height: 1 }));
    return { group, cells, label: put(find(".rows"), "span", {}, name) };
  });

  function fillStrip() {
    rows.forEach(({ cells }, row) => {
      const number = row % 2 ? Math.cos : Math.sin;
      const omega = frequency(Math.floor(row / 2));
      cells.forEach((cell, p) => cell.setAttribute("fill-opacity", (number(p * omega) + 1) / 2));
    });
  }

  const curve = find(".curve svg");
  set(curve, { viewBox: `0 -1.1 ${length} 2.2` });
  draw(curve, "line", { class: "zero", x2: length });
  draw(curve, "line", { class: "level", x2: length, y1: -ALIKE, y2: -ALIKE });
  const wave = draw(curve, "path", { class: "wave" });
  const dots = draw(curve, "path", { class: "dots" });
  const marked = draw(curve, "path", { class: "marks" });
  const across = (position) => `${(100 * (position + 0.5)) / length}%`;
  const plots = [find(".strip"), find(".curve")];
  const linesAfter = plots.map((plot) => put(plot, "div", { class: "line at-k" }));
  const linesBefore = plots.map((plot) => put(plot, "div", { class: "line" }));
  const tags = plots.map((plot) => put(plot, "span", { class: "tag", "aria-hidden": true }));
  for (const p of positions.filter((p) => p % 32 === 0 || p === length - 1))
    place(put(find(".ticks"), "span", {}, p), p);

  /** Put a text at a position of the axis: at the ends it stays inside. */
  function place(element, position) {
    element.style.left = across(position);
    element.style.transform = `translateX(-${across(position)})`;
  }

  // ---- What is shown ----------------------------------------------------------------------------

  function change(name, number) {
    if (name) state[name] = number;
    paint();
    announce();
  }

  function paint() {
    for (const name of ["position", "shift"]) find(`.${name} .number`).textContent = state[name];
    clocks.forEach(paintClock);
    paintTurn();
    paintCharts();
    find(".verdict").textContent = verdict();
  }

  function paintClock(i) {
    const { card, sector, then, thenTip, now, nowTip, wavelength, cos, sin, turn } = cards[i];
    const omega = frequency(i);
    const a = omega * state.position;
    const b = a + omega * state.shift;
    card.classList.toggle("off", !state.used[i]);
    // On the screen y points down; a hand's sine points up.
    set(now, { x2: Math.cos(a), y2: -Math.sin(a) });
    set(nowTip, { cx: Math.cos(a), cy: -Math.sin(a) });
    set(then, { x2: Math.cos(b), y2: -Math.sin(b) });
    set(thenTip, { x: Math.cos(b) - 0.13, y: -Math.sin(b) - 0.13 });
    const large = (b - a) % TURN > Math.PI ? 1 : 0;
    const ends = [a, b].map((angle) => `${0.55 * Math.cos(angle)} ${-0.55 * Math.sin(angle)}`);
    sector.setAttribute("d", `M 0 0 L ${ends[0]} A 0.55 0.55 0 ${large} 0 ${ends[1]} Z`);
    show(wavelength, TURN / omega);
    wavelength.textContent = TURN / omega < 100 ? (TURN / omega).toFixed(1) : whole(TURN / omega);
    show(cos, Math.cos(a));
    show(sin, Math.sin(a));
    show(turn, b - a);
    turn.textContent = degrees(b - a);
  }

  function paintTurn() {
    const omega = frequency(state.chosen);
    const [a, turn] = [omega * state.position, omega * state.shift];
    const [c, s] = [Math.cos(turn), Math.sin(turn)];
    const fill = (cells, numbers) => cells.forEach((cell, n) => show(cell, numbers[n]));
    fill(matrix, [c, -s, s, c]);
    fill(before, [Math.cos(a), Math.sin(a)]);
    fill(after, [Math.cos(a + turn), Math.sin(a + turn)]);
    const [r, from, to] = [matrix, before, after].map((cells) => cells.map((cell) => cell.textContent));
    const told =
      `The matrix with rows ${r[0]}, ${r[1]} and ${r[2]}, ${r[3]} times the hand at p, ` +
      `${from.join(", ")}, is the hand at p + k, ${to.join(", ")}.`;
    find(".equation").setAttribute("aria-label", told);
    find(".angle").textContent =
      `by ω·k = ${Number(omega.toPrecision(3))} · ${state.shift} = ${Number(turn.toPrecision(3))} ` +
      `radians = ${rounds(turn)}, whatever p is.`;
  }

  function paintCharts() {
    const { position, shift } = state;
    const point = (x) => `${x + 0.5} ${-likeness(x - position)}`;
    const fine = [...Array((length - 1) * WAVE_STEPS + 1).keys()].map((n) => n / WAVE_STEPS);
    wave.setAttribute("d", `M ${fine.map(point).join(" L ")}`);
    dots.setAttribute("d", positions.map((p) => `M ${point(p)} h 0`).join(" "));
    const alike = confusable();
    marked.setAttribute("d", alike.map((p) => `M ${point(p)} h 0`).join(" "));
    for (const old of root.querySelectorAll(".ticks .mark")) old.remove();
    for (const p of alike) put(find(".ticks"), "span", { class: "mark" }, "▲").style.left = across(p);
    rows.forEach(({ group, label }, row) => {
      const off = !state.used[Math.floor(row / 2)];
      group.classList.toggle("off", off);
      label.classList.toggle("off", off);
    });

    const beyond = position + shift >= length;
    for (const line of linesBefore) line.style.left = across(position);
    for (const line of linesAfter) {
      line.style.left = across(position + shift);
      line.hidden = beyond;
    }
    tags[0].textContent = `p = ${position}`;
    tags[1].textContent = `p + k = ${position + shift}${beyond ? " →" : ""}`;
    place(tags[0], position);
    place(tags[1], Math.min(position + shift, length - 1));
    find(".curve").setAttribute("aria-label", verdict());
  }

  /** The other positions that the clocks in use can hardly tell from p. */
  function confusable() {
    return positions.filter((p) => p !== state.position && likeness(p - state.position) >= ALIKE);
  }

  function verdict() {
    const { position } = state;
    const used = clocks.filter((i) => state.used[i]).map((i) => i + 1);
    if (!used.length) return "Without a clock every position looks the same.";
    const several = `clocks ${used.slice(0, -1).join(", ")} and ${used.at(-1)}`;
    const which =
      used.length === clocks.length ? "all clocks" : used.length > 1 ? several : `clock ${used[0]} alone`;
    const alike = confusable();
    if (alike.length) {
      const listed = `${alike.slice(0, LISTED).join(", ")}${alike.length > LISTED ? ", …" : ""}`;
      const count = `${alike.length} of ${length - 1} other positions`;
      const are = alike.length > 1 ? "are" : "is";
      return `With ${which}, ${count} ${are} hard to tell from ${position}: ${listed}.`;
    }
    const value = (p) => likeness(p - position);
    const others = positions.filter((p) => p !== position);
    const nearest = others.reduce((best, p) => (value(p) > value(best) ? p : best));
    return (
      `With ${which}, no other position is hard to tell from ${position}. ` +
      `The most alike is ${nearest}, with ${two(value(nearest))}.`
    );
  }

  let pending;
  function announce() {
    clearTimeout(pending);
    pending = setTimeout(() => {
      const told = clocks.filter((i) => state.used[i]).map((i) => {
        const { cos, sin, turn } = cards[i];
        const hand = `cos ${cos.textContent}, sin ${sin.textContent}`;
        return `Clock ${i + 1}: ${hand}, turned by ${turn.textContent}.`;
      });
      find("[role=status]").textContent =
        `Position ${state.position}, shift ${state.shift}. ${told.join(" ")} ${verdict()}`;
    }, 500);
  }

  fillStrip();
  paint();
}

function degrees(radians) {
  const angle = (radians * 360) / TURN;
  return `${angle.toFixed(angle < 10 ? 1 : 0)}°`;
}

/** The same, whole rounds apart: "7 · 360° + 1.0°". */
function rounds(radians) {
  const whole = Math.floor(radians / TURN);
  return whole ? `${whole} · 360° + ${degrees(radians - whole * TURN)}` : degrees(radians);
}

/** A whole number, its thousands apart. */
function whole(number) {
  return Math.round(number).toLocaleString("en").replaceAll(",", "\u202f");
}
