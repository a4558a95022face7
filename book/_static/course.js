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
