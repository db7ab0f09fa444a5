(function () {
  "use strict";
  const tip = document.getElementById("tip");
  const all = (key) => document.querySelectorAll('[data-point="' + CSS.escape(key) + '"]');

  function clear() {
    document.querySelectorAll(".on").forEach((e) => e.classList.remove("on"));
    tip.hidden = true;
  }

  function place(at) {
    const box = tip.getBoundingClientRect(), gap = 16;
    const left = at.right + gap + box.width < innerWidth ? at.right + gap : at.left - gap - box.width;
    const top = Math.min(at.top, innerHeight - box.height - 8);
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = Math.max(8, top) + "px";
  }

  function show(mark, withTip) {
    clear();
    const key = mark.dataset.point;
    all(key).forEach((e) => e.classList.add("on"));
    const numbers = document.getElementById("numbers-" + key);
    if (!withTip || !numbers) return;
    tip.replaceChildren(numbers.content.cloneNode(true));
    tip.hidden = false;
    place(mark.getBoundingClientRect());
  }

  // One tab stop a figure; the arrow keys go from point to point.
  function step(mark, by) {
    const points = [...mark.parentNode.querySelectorAll(".pt")];
    points.sort((a, b) => a.dataset.x - b.dataset.x);
    const next = points[points.indexOf(mark) + by];
    if (!next) return;
    points.forEach((p) => p.setAttribute("tabindex", p === next ? 0 : -1));
    next.focus();
  }

  document.querySelectorAll(".pt").forEach((mark) => {
    mark.addEventListener("mouseenter", () => show(mark, true));
    mark.addEventListener("mouseleave", clear);
    mark.addEventListener("focus", () => show(mark, true));
    mark.addEventListener("click", () => show(mark, true));
    mark.addEventListener("blur", clear);
    mark.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (by) { event.preventDefault(); step(mark, by); }
    });
  });
  document.querySelectorAll("tr[data-point]").forEach((row) => {
    row.addEventListener("mouseenter", () => show(row, false));
    row.addEventListener("mouseleave", clear);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") clear(); });

  // Says so where a table is wider than its box; also when a fold is opened or the window changes.
  const widths = () => document.querySelectorAll(".scroll").forEach((box) => {
    box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth + 1;
  });
  widths();
  addEventListener("resize", widths);
  document.addEventListener("toggle", widths, true);

  function copied(button, text) {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    button.textContent = done ? "copied" : "could not copy: select it below";
  }

  document.querySelectorAll("button[data-copy]").forEach((button) => {
    button.addEventListener("click", () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      if (!navigator.clipboard) { copied(button, text); return; }
      navigator.clipboard.writeText(text).then(() => { button.textContent = "copied"; }, () => copied(button, text));
    });
  });
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not(.screen)").forEach((d) => { d.dataset.was = d.open; d.open = true; });
  });
  addEventListener("afterprint", () => {
    document.querySelectorAll("details[data-was=false]").forEach((d) => { d.open = false; });
  });
})();
