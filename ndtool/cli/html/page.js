"use strict";
// Highlights the cells that links connect to the cell under the mouse or in focus.
// The ID of a cell is its array and its index among the drawn elements, such as output-3.
// A link is a list of indices, or null: of an element of the output, an element of data, an index
// tuple, an update, and of that update among all updates of the element of the output, from 1.
(() => {
  const drawing = document.getElementById("drawing");
  if (!drawing) return;
  const { tuples, links } = JSON.parse(document.getElementById("links").textContent);
  const sentence = document.getElementById("sentence");
  const cellById = (id) => document.getElementById(id);

  // The IDs of the cells of a link's index tuple, and of all cells of a link.
  const tupleIds = ([, , tuple]) => (tuple === null ? [] : tuples[tuple].map((i) => `indices-${i}`));
  const linkIds = (link) => {
    const [output, data, , update] = link;
    const pairs = [["output", output], ["actual", output], ["data", data], ["updates", update]];
    const linked = pairs.filter(([, index]) => index !== null);
    return [...linked.map(([array, index]) => `${array}-${index}`), ...tupleIds(link)];
  };
  const linksById = new Map();
  for (const link of links) {
    for (const id of linkIds(link)) {
      if (!linksById.has(id)) linksById.set(id, []);
      linksById.get(id).push(link);
    }
  }

  const clear = () => {
    for (const cell of drawing.querySelectorAll(".highlighted, .current")) {
      cell.classList.remove("highlighted", "current");
      delete cell.dataset.order;
    }
  };

  // Several updates of an element are numbered, in a corner of their cells.
  const numberUpdates = (cellLinks) => {
    const updateLinks = cellLinks.filter((link) => link[3] !== null);
    if (updateLinks.length < 2) return;
    for (const link of updateLinks) {
      for (const id of [`updates-${link[3]}`, ...tupleIds(link)]) {
        const cell = cellById(id);
        if (!cell.dataset.order) cell.dataset.order = link[4];
      }
    }
  };

  // Scroll a table that is wider than its panel to a highlighted cell outside the panel.
  const reveal = (cell) => {
    const panel = cell.closest(".panel");
    const [panelBox, cellBox] = [panel.getBoundingClientRect(), cell.getBoundingClientRect()];
    if (cellBox.left < panelBox.left || cellBox.right > panelBox.right) {
      panel.scrollLeft += (cellBox.left + cellBox.right - panelBox.left - panelBox.right) / 2;
    }
  };

  const highlight = (cell) => {
    clear();
    if (!cell) return; // an empty output has no cells
    const cellLinks = linksById.get(cell.id) ?? [];
    for (const id of new Set(cellLinks.flatMap(linkIds))) cellById(id)?.classList.add("highlighted");
    for (const linked of drawing.querySelectorAll(".highlighted")) {
      if (linked !== cell) reveal(linked);
    }
    if (/^(output|actual)-/.test(cell.id)) numberUpdates(cellLinks);
    cell.classList.add("current");
    sentence.textContent = cell.getAttribute("aria-label");
  };

  // When the mouse leaves, the cell selected by keyboard or touch is highlighted again.
  const initial = drawing.dataset.initial ? cellById(drawing.dataset.initial) : null;
  let selected = initial;
  const isCell = (node) => node instanceof Element && node.getAttribute("role") === "gridcell";
  const cellsOfArray = (cell) => [...cell.closest(".array").querySelectorAll("[role=gridcell]")];

  drawing.addEventListener("pointerover", ({ target }) => {
    if (isCell(target)) highlight(target);
  });
  drawing.addEventListener("pointerleave", () => highlight(selected));
  drawing.addEventListener("focusin", ({ target }) => {
    if (!isCell(target)) return;
    for (const cell of cellsOfArray(target)) cell.tabIndex = cell === target ? 0 : -1;
    selected = target;
    highlight(target);
  });

  const cellByKey = (cell, key) => {
    const cells = cellsOfArray(cell);
    const index = cells.indexOf(cell);
    const columns = Number(cell.closest(".array").dataset.columns);
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    if (key in steps) return cells[index + steps[key]];
    if (key === "Home") return cells[0];
    if (key === "End") return cells.at(-1);
    const highlighted = [...drawing.querySelectorAll("[role=gridcell].highlighted")];
    return key === "Enter" ? highlighted.find((linked) => !cells.includes(linked)) : undefined;
  };

  drawing.addEventListener("keydown", (event) => {
    if (!isCell(event.target) || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") {
      selected = initial;
      event.target.blur();
      highlight(selected);
      return;
    }
    const cell = cellByKey(event.target, event.key);
    if (cell) cell.focus();
    if (cell || event.key.startsWith("Arrow")) event.preventDefault();
  });

  highlight(selected);
})();
