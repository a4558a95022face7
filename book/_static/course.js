// A page opened from a folder (file://) may not fetch its neighbours: search then lists titles without excerpts
// instead of failing.
if (window.location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// A figure wider than a phone scrolls inside itself: then, and only then, the keyboard must be able to reach it.
const reachScrollingFigures = () => {
  for (const figure of document.querySelectorAll(".ac-figure")) {
    figure.toggleAttribute("tabindex", figure.scrollWidth > figure.clientWidth);
    if (figure.hasAttribute("tabindex")) figure.tabIndex = 0;
  }
};
window.addEventListener("load", reachScrollingFigures);
window.addEventListener("resize", reachScrollingFigures);
