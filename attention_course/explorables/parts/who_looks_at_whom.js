const PAUSE_BETWEEN_WORDS = 3200;
const GLIDE = 700;

function explore(root) {
  const { tokens, weights, values, contexts } = data;
  const names = named(tokens);
  const find = (selector) => root.querySelector(selector);
  const button = find("button");

  // The parts: six words above, six lines, six words below, six pieces of the mixture.
  const radios = tokens.map((token, i) => {
    const label = put(find(".askers"), "label");
    const radio = put(label, "input", { type: "radio", name: "asker", "aria-label": names[i] });
    put(label, "span", { class: "word" }, token);
    radio.addEventListener("change", () => choose(i));
    radio.addEventListener("click", stop);
    return radio;
  });
  const lines = tokens.map(() => draw(find("svg"), "path"));
  const numbers = tokens.map((token) => {
    const item = put(find(".answers"), "li");
    put(item, "span", { class: "word" }, token);
    return put(item, "span", { class: "number" });
  });
  const pieces = tokens.map(() => put(find(".mix"), "span"));

  // What is drawn: a place from which the lines come, and six weights.
  let drawn = { from: data.start, weights: weights[data.start] };
  let chosen = data.start;
  let halt = () => {};
  let timer = null;

  function paint({ from, weights: row }) {
    drawn = { from, weights: row };
    row.forEach((weight, j) => {
      const [x, y] = [from + 0.5, j + 0.5];
      lines[j].setAttribute("d", `M ${x} 0 C ${x} 0.55, ${y} 0.45, ${y} 1`);
      lines[j].setAttribute("stroke-width", 1 + 26 * weight);
      lines[j].setAttribute("stroke-opacity", 0.35 + 0.65 * weight);
      pieces[j].style.flex = `${weight} 0 0`;
      pieces[j].textContent = weight > 0.1 ? tokens[j] : "";
    });
  }

  function turnTo(i) {
    chosen = i;
    radios[i].checked = true;
    const largest = Math.max(...weights[i]);
    numbers.forEach((number, j) => {
      show(number, weights[i][j]);
      number.classList.toggle("largest", weights[i][j] === largest);
    });
    const sum = find(".sum");
    sum.textContent = "";
    put(sum, "b", {}, tokens[i]);
    sum.append(` takes away a mixture of the words’ `);
    put(sum, "b", { class: "value" }, "values");
    const context = contexts[i].map(two).join(", ");
    sum.append(`, its context: ${mixture(weights[i], tokens)} = (${context})`);
    const before = drawn;
    halt();
    halt = glide(GLIDE, (t) => {
      const between = (a, b) => a + t * (b - a);
      paint({
        from: between(before.from, i),
        weights: weights[i].map((weight, j) => between(before.weights[j], weight)),
      });
    });
  }

  function choose(i) {
    stop();
    turnTo(i);
    const seen = weights[i].map((weight, j) => `${names[j]} ${two(weight)}`);
    find("[role=status]").textContent = `${names[i]} looks at: ${seen.join(", ")}`;
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    button.textContent = "▶ Play";
  }

  function play() {
    timer = setInterval(() => turnTo((chosen + 1) % tokens.length), PAUSE_BETWEEN_WORDS);
    button.textContent = "❚❚ Pause";
  }

  button.addEventListener("click", () => (timer === null ? play() : stop()));
  calm.addEventListener("change", () => calm.matches && stop());
  paint(drawn);
  turnTo(data.start);
  if (calm.matches) stop();
  else play();
}
