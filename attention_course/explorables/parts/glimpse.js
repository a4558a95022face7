const STEP = 1400;

function explore(root) {
  const find = (selector) => root.querySelector(selector);
  const button = find(".foot button");
  const scenes = data.scenes.map((scene) => ({
    ...scene,
    names: named(scene.words),
    image: bytes(scene.image),
    weights: bytes(scene.weights),
  }));
  // What is kept: a scene, and either a word or a cell; what the mouse points at is shown meanwhile.
  const kept = { scene: 0, word: 0, cell: null };
  let pointed = null;
  let timer = null;
  let words = [];
  let cells = [];

  const here = () => scenes[kept.scene];
  const weight = (word, cell) => here().weights[word * cells.length + cell] / 255;
  const placed = (cell) => `row ${Math.floor(cell / here().cells[1]) + 1}, column ${(cell % here().cells[1]) + 1}`;

  const pictures = scenes.map(({ words }, i) => {
    const choice = put(find(".which"), "button", { type: "button", "aria-label": `${i + 1}: ${words.join(" ")}` });
    choice.addEventListener("click", () => {
      stop();
      lay(i);
      say();
    });
    return put(choice, "canvas");
  });
  find(".which").hidden = scenes.length === 1;

  let colours = [];
  const paintImage = (canvas, { image, size }) => paintBytes(canvas, image, size[1], size[0], colours);

  /** Lay out a scene: its picture, its cells, its words. */
  function lay(scene) {
    Object.assign(kept, { scene, word: 0, cell: null });
    pointed = null;
    pictures.forEach((canvas, i) => canvas.parentNode.setAttribute("aria-pressed", i === scene));
    paintImage(find(".scene canvas"), here());
    const [down, across] = here().cells;
    const table = find("table");
    table.textContent = "";
    const body = put(table, "tbody");
    cells = Array.from({ length: down }, () => put(body, "tr")).flatMap((row) =>
      Array.from({ length: across }, () => put(row, "td", { role: "gridcell" })),
    );
    cells.forEach((cell, i) => {
      cell.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && point({ cell: i }));
      cell.addEventListener("click", () => cell.focus());
      cell.addEventListener("focus", () => choose({ cell: i }));
      cell.addEventListener("keydown", (event) => steer(event, i));
    });
    for (const old of root.querySelectorAll(".words label")) old.remove();
    words = here().words.map((text, i) => {
      const label = put(find(".words"), "label");
      const radio = put(label, "input", { type: "radio", name: "word", "aria-label": here().names[i] });
      put(label, "span", { class: "word" }, text);
      radio.addEventListener("change", () => choose({ word: i }));
      radio.addEventListener("click", () => choose({ word: i }));
      label.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && point({ word: i }));
      return { label, radio, number: put(label, "span", { class: "number" }) };
    });
    find(".note").textContent = here().note;
    paint();
  }

  for (const part of root.querySelectorAll(".scene, .words")) part.addEventListener("pointerleave", () => point(null));

  function steer(event, i) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const [, across] = here().cells;
    const to = {
      ArrowUp: i - across,
      ArrowDown: i + across,
      ArrowLeft: i % across ? i - 1 : i,
      ArrowRight: (i + 1) % across ? i + 1 : i,
      Home: 0,
      End: cells.length - 1,
    }[event.key];
    if (to === undefined) return;
    cells[to]?.focus();
    event.preventDefault();
  }

  function point(at) {
    if (at && timer !== null) return; // while it plays the mouse does not interfere
    pointed = at;
    paint();
  }

  function choose({ word = kept.word, cell = null }) {
    stop();
    Object.assign(kept, { word, cell });
    pointed = null;
    paint();
    say();
  }

  function paint() {
    const { word = kept.word, cell = null } = pointed ?? kept;
    const row = cells.map((_, i) => weight(word, i));
    const line = words.map((_, i) => (cell === null ? 0 : weight(i, cell)));
    const most = { cell: Math.max(...row), word: Math.max(...line) };
    cells.forEach((element, i) => {
      const veiled = cell === null ? row[i] : 0;
      element.style.setProperty("--veil", `${64 * Math.sqrt(veiled)}%`);
      element.dataset.value = veiled;
      element.classList.toggle("most", veiled > 0 && veiled === most.cell);
      element.classList.toggle("asked", i === cell);
      set(element, {
        tabindex: i === (kept.cell ?? 0) ? 0 : -1,
        "aria-selected": i === cell,
        "aria-label": placed(i) + (cell === null ? `: ${two(row[i])}` : ""),
      });
    });
    words.forEach(({ label, radio, number }, i) => {
      radio.checked = i === kept.word;
      label.classList.toggle("on", cell === null && i === word);
      label.classList.toggle("most", line[i] > 0 && line[i] === most.word);
      label.style.setProperty("--w", line[i]);
      show(number, line[i]);
      if (cell === null) number.textContent = "";
    });
    tell(word, cell, row, line);
  }

  function tell(word, cell, row, line) {
    const text = find(".sum");
    text.textContent = "";
    const asked = cell === null ? row : line;
    const most = Math.max(...asked);
    const first = asked.indexOf(most);
    const { names } = here();
    put(text, "b", { class: cell === null ? "query" : "key" }, cell === null ? names[word] : placed(cell));
    if (!most) text.append(cell === null ? " looks nowhere." : ": no word looks there.");
    else if (cell === null) text.append(` looks most at ${placed(first)}: ${two(most)}.`);
    else text.append(`: ${names[first]} looks there most, with ${two(most)}.`);
  }

  function say() {
    find("[role=status]").textContent = find(".sum").textContent;
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    button.textContent = "▶ Play";
  }

  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    Object.assign(kept, { word: 0, cell: null });
    pointed = null;
    paint();
    button.textContent = "❚❚ Pause";
    timer = setInterval(() => {
      if (kept.word + 1 === words.length) return stop();
      kept.word += 1;
      paint();
    }, STEP);
  });

  stop();
  inColours(find("figure"), ({ paper, ink }) => {
    colours = [paper, ink];
    scenes.forEach((scene, i) => paintImage(pictures[i], scene));
    paintImage(find(".scene canvas"), here());
  });
  lay(0);
}
