"use strict";
(function () {
  var box = document.getElementById("filter");
  var status = document.getElementById("status");

  function byHand(words) {
    var area = document.createElement("textarea");
    area.value = words;
    area.className = "away";
    document.body.append(area);
    area.select();
    var done = document.execCommand("copy");
    area.remove();
    return done;
  }

  function showCopied(button, done) {
    if (!button.dataset.words) { button.dataset.words = button.textContent; }
    button.textContent = done ? "copied" : "select and copy by hand";
    button.classList.toggle("done", done);
    setTimeout(function () {
      button.textContent = button.dataset.words;
      button.classList.remove("done");
    }, 1500);
  }

  function copy(button) {
    var words = button.dataset.copy;
    if (!navigator.clipboard) { showCopied(button, byHand(words)); return; }
    navigator.clipboard.writeText(words).then(
      function () { showCopied(button, true); },
      function () { showCopied(button, byHand(words)); }
    );
  }

  function names(one, wanted) {
    if ("all" in one.dataset) { return true; }
    return (one.textContent + " " + (one.dataset.nodes || "")).toLowerCase().includes(wanted);
  }

  function filter() {
    var wanted = box.value.trim().toLowerCase();
    var squares = 0, findings = 0;
    document.querySelectorAll(".grid li.n").forEach(function (one) {
      var hit = one.title.toLowerCase().includes(wanted);
      one.classList.toggle("off", !hit);
      one.classList.toggle("hit", wanted ? hit : false);
      squares += hit ? 1 : 0;
    });
    document.querySelectorAll(".finding, .row").forEach(function (one) {
      var hit = names(one, wanted);
      one.hidden = !hit;
      if (one.classList.contains("finding")) { findings += hit ? 1 : 0; }
    });
    document.querySelectorAll("details.nodes").forEach(function (one) { if (wanted) { one.open = true; } });
    status.textContent = wanted ? squares + " nodes, " + findings + " findings" : "";
  }

  function openTarget() {
    var one = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (one instanceof HTMLDetailsElement) { one.open = true; }
  }

  window.addEventListener("hashchange", openTarget);
  document.addEventListener("click", function (event) {
    var button = event.target.closest("button[data-copy]");
    if (button) { copy(button); }
  });
  box.addEventListener("input", filter);
  document.addEventListener("keydown", function (event) {
    if (event.target === box) {
      if (event.key === "Escape") { box.value = ""; filter(); box.blur(); }
    } else if (event.key === "/") { event.preventDefault(); box.focus(); }
  });
  openTarget();
  if (box.value) { filter(); }
})();
