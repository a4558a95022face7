// A page opened from a folder (file://) may not fetch its neighbours: search then lists titles without excerpts
// instead of failing.
if (window.location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// A figure wider than a phone scrolls inside itself: then, and only then, the keyboard must be able to reach it.
// With a caption it is the picture that scrolls.
const reachScrollingFigures = () => {
  for (const figure of document.querySelectorAll(".ac-figure, .ac-figure > .picture")) {
    const scrolls = getComputedStyle(figure).overflowX !== "visible" && figure.scrollWidth > figure.clientWidth;
    figure.toggleAttribute("tabindex", scrolls);
    if (scrolls) figure.tabIndex = 0;
  }
};
window.addEventListener("load", reachScrollingFigures);
window.addEventListener("resize", reachScrollingFigures);

// The options under a Predict box become buttons: choosing one marks it and opens the answer behind the box.
// Without this script they are a list, with a folded answer.
const offerChoices = (box) => {
  const answer = box.nextElementSibling;
  const list = box.querySelector(":scope > div > ul, :scope > ul");
  const summary = answer?.matches("details") && answer.querySelector(":scope > summary");
  if (!list || !summary) return;
  const name = summary.textContent;
  summary.textContent = "Choose first, or open the answer";
  answer.addEventListener("toggle", () => {
    if (answer.open) summary.textContent = name;
  });
  list.classList.add("choices");
  const buttons = [...list.children].map((option) => {
    const button = document.createElement("button");
    button.type = "button";
    button.ariaPressed = "false";
    button.append(...(option.querySelector(":scope > p") ?? option).childNodes);
    option.replaceChildren(button);
    button.addEventListener("click", () => {
      for (const each of buttons) each.ariaPressed = String(each === button);
      answer.open = true;
    });
    return button;
  });
};
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("blockquote.predict").forEach(offerChoices);
});

// On a phone a wide table with words in its cells is dealt as cards, one for each row, with the heads of the columns
// in front of its cells. A table of numbers is read down its columns: it stays as it is and scrolls.
const WORDS = 24; // letters of a cell that would be broken into a narrow column
const labelled = new WeakSet();
const label = (table, heads, rows) => {
  if (labelled.has(table)) return;
  labelled.add(table);
  for (const row of rows) {
    [...row.cells].forEach((cell, column) => {
      cell.classList.toggle("nothing", !cell.textContent.trim());
      if (!column) return; // the first cell is the card's title
      const name = document.createElement("span");
      name.className = "card-label";
      name.ariaHidden = "true"; // the head itself is still read aloud
      name.append(...heads[column].cloneNode(true).childNodes);
      const content = document.createElement("div");
      content.append(...cell.childNodes);
      cell.append(name, content);
    });
  }
};
const dealCards = () => {
  const phone = window.matchMedia("(max-width: 600px)").matches;
  for (const table of document.querySelectorAll(".bd-article table")) {
    const heads = table.tHead?.rows.length === 1 ? [...table.tHead.rows[0].cells] : [];
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
    const regular = heads.length > 2 && rows.every((row) => row.cells.length === heads.length);
    table.classList.remove("cards");
    const wide = table.scrollWidth > table.parentElement.clientWidth;
    const wordy = rows.some((row) => [...row.cells].slice(1).some((cell) => cell.innerText.trim().length > WORDS));
    const cards = phone && regular && wide && wordy;
    // laid out as blocks, a table is none to a screen reader unless it says so
    for (const [nodes, role] of [[[table], "table"], [[...heads], "columnheader"], [table.querySelectorAll("tr"), "row"],
      [table.querySelectorAll("td"), "cell"], [[table.tHead, ...table.tBodies].filter(Boolean), "rowgroup"]]) {
      for (const node of nodes) node.role = cards ? role : null;
    }
    if (cards) label(table, heads, rows);
    table.classList.toggle("cards", cards);
  }
};
window.addEventListener("load", () => (window.MathJax?.startup?.promise ?? Promise.resolve()).then(dealCards));
window.addEventListener("resize", dealCards);
