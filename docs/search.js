// Order of the site's search results: the page that has the words as its name, then pages with them
// in their title; how-to guides before reference, and the change log last.
const _PAGES = ["docs/how-to/", "README", "docs/tutorials/", "docs/checks/", "docs/reference/",
  "docs/explanation/", "SECURITY", "contrib/", "docs/internals/", "docs/reference/command-line",
  "CHANGELOG"];

Scorer.score = ([page, title, , , score]) => {
  const query = new URLSearchParams(window.location.search).get("q") || "";
  const asked = query.toLowerCase().split(/[^a-z0-9]+/).filter(Boolean);
  const names = (text) => {
    const words = text.toLowerCase().split(/[^a-z0-9]+/);
    return asked.every((one) => words.includes(one) || words.includes(`${one}s`));
  };
  const named = names(page.split("/").pop()) ? 40 : names(title) ? 20 : 0;
  return score + named - _PAGES.findLastIndex((start) => page.startsWith(start));
};
