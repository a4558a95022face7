// A page opened from a folder (file://) may not fetch its neighbours: search then lists titles without excerpts
// instead of failing.
if (window.location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
