"use strict";
// Highlights the cells linked to that under the mouse or in focus; the report has all links.
// The ID of a cell is its array and its number among the drawn elements, such as output-3. A link has
// the numbers of an element of the output, one of data, an index tuple and an update, or null, and
// that of the update among those of its element.
(() => {
  const drawing = document.getElementById("drawing");
  if (!drawing) return;
  const { tuples, links } = JSON.parse(document.getElementById("links").textContent);
  const sentence = document.getElementById("sentence");
  const cellOf = (name) => document.getElementById(name);

  // The IDs of all cells of a link, and those of its tuple.
  const tupleOf = ([, , tuple]) => (tuple === null ? [] : tuples[tuple].map((n) => `indices-${n}`));
  const namesOf = (link) => {
    const [output, data, , updates] = link;
    const pairs = [["output", output], ["found", output], ["data", data], ["updates", updates]];
    const named = pairs.filter(([, number]) => number !== null);
    return [...named.map(([array, number]) => `${array}-${number}`), ...tupleOf(link)];
  };
  const linksOf = new Map();
  for (const link of links) {
    for (const name of namesOf(link)) {
      if (!linksOf.has(name)) linksOf.set(name, []);
      linksOf.get(name).push(link);
    }
  }

  const clear = () => {
    for (const cell of drawing.querySelectorAll(".lit, .here")) {
      cell.classList.remove("lit", "here");
      delete cell.dataset.order;
    }
  };

  // Several updates of one element have an order, shown in their corner.
  const showOrder = (met) => {
    const updates = met.filter((link) => link[3] !== null);
    if (updates.length < 2) return;
    for (const link of updates) {
      for (const name of [`updates-${link[3]}`, ...tupleOf(link)]) {
        const cell = cellOf(name);
        if (!cell.dataset.order) cell.dataset.order = link[4];
      }
    }
  };

  // A table wider than its box is scrolled to a highlighted cell outside it.
  const reveal = (cell) => {
    const panel = cell.closest(".panel");
    const [box, own] = [panel.getBoundingClientRect(), cell.getBoundingClientRect()];
    if (own.left < box.left || own.right > box.right) {
      panel.scrollLeft += (own.left + own.right - box.left - box.right) / 2;
    }
  };

  const light = (cell) => {
    clear();
    if (!cell) return; // an empty output has nothing to highlight
    const met = linksOf.get(cell.id) ?? [];
    for (const name of new Set(met.flatMap(namesOf))) cellOf(name)?.classList.add("lit");
    for (const other of drawing.querySelectorAll(".lit")) if (other !== cell) reveal(other);
    if (/^(output|found)-/.test(cell.id)) showOrder(met);
    cell.classList.add("here");
    sentence.textContent = cell.getAttribute("aria-label");
  };

  // When the mouse leaves, the cell selected by keyboard or touch is highlighted again.
  const begin = drawing.dataset.begin ? cellOf(drawing.dataset.begin) : null;
  let chosen = begin;
  const isCell = (node) => node instanceof Element && node.getAttribute("role") === "gridcell";
  const restOf = (cell) => [...cell.closest(".array").querySelectorAll("[role=gridcell]")];

  drawing.addEventListener("pointerover", ({ target }) => {
    if (isCell(target)) light(target);
  });
  drawing.addEventListener("pointerleave", () => light(chosen));
  drawing.addEventListener("focusin", ({ target }) => {
    if (!isCell(target)) return;
    for (const cell of restOf(target)) cell.tabIndex = cell === target ? 0 : -1;
    chosen = target;
    light(target);
  });

  const aim = (cell, key) => {
    const cells = restOf(cell);
    const here = cells.indexOf(cell);
    const columns = Number(cell.closest(".array").dataset.columns);
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    if (key in steps) return cells[here + steps[key]];
    if (key === "Home") return cells[0];
    if (key === "End") return cells.at(-1);
    const lit = [...drawing.querySelectorAll("[role=gridcell].lit")];
    return key === "Enter" ? lit.find((other) => !cells.includes(other)) : undefined;
  };

  drawing.addEventListener("keydown", (event) => {
    if (!isCell(event.target) || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") {
      chosen = begin;
      event.target.blur();
      light(chosen);
      return;
    }
    const cell = aim(event.target, event.key);
    if (cell) cell.focus();
    if (cell || event.key.startsWith("Arrow")) event.preventDefault();
  });

  light(chosen);
})();
