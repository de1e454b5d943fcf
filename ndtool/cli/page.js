"use strict";
// Draws what the JSON of the report describes; without this script a report has tables only.
// Texts are set as text, never as markup.
(() => {
  const { drawing } = JSON.parse(document.getElementById("report").textContent);
  const element = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== null) node.setAttribute(key, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  };
  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

  // Bars beside the counts of a table.
  for (const table of document.querySelectorAll("table.bars")) {
    const rows = [...table.tBodies[0].rows];
    const counts = rows.map((row) => Number(row.lastElementChild.textContent));
    rows.forEach((row, n) => {
      const bar = element("span", { class: "bar", "aria-hidden": "true" });
      bar.style.width = `${counts[n] && Math.max(1, (100 * counts[n]) / Math.max(...counts))}%`;
      row.append(element("td", { class: "bars" }, bar));
    });
  }
  if (!drawing) return;

  // Cells by array and position; the number of a cell is its place among the drawn elements.
  const root = document.getElementById("drawing");
  const { tuples, links, counts, scatters, kept, replaces } = drawing;
  const cells = new Map();
  const cellsOf = Object.fromEntries(drawing.grids.map(({ role }) => [role, []]));
  const find = (role, position) => position && cells.get(`${role}-${position}`);
  for (const grid of drawing.grids) {
    const positions = grid.axes.reduce((all, axis) => all.flatMap((p) => axis.map((i) => [...p, i])), [[]]);
    positions.forEach((position, number) => {
      const cell = { role: grid.role, position, number, id: `${grid.role}-${number}`, links: [],
        text: grid.values?.[number], wrong: grid.wrong.includes(number) };
      cells.set(`${grid.role}-${position}`, cell);
      cellsOf[grid.role].push(cell);
    });
  }
  const tupleAt = new Map(tuples.map((tuple) => [`${tuple.position}`, tuple]));
  const components = (at) => (tupleAt.get(`${at}`)?.cells ?? []).map((position) => find("indices", position));
  for (const tuple of tuples) {
    components(tuple.position).forEach((cell, j) => Object.assign(cell, {
      tuple, component: j, wrong: tuple.out_of_bounds.includes(j),
    }));
  }
  const seen = new Map(); // updates of an element so far, to number them
  for (const link of links) {
    link.cells = [find("output", link.output), find("actual", link.output), find("data", link.data),
      find("updates", link.updates), ...(link.indices ? components(link.indices) : [])].filter((cell) => cell);
    for (const cell of new Set(link.cells)) cell.links.push(link);
    if (link.updates) seen.set(`${link.output}`, [...(seen.get(`${link.output}`) ?? []), link]);
  }
  for (const updates of seen.values()) { // the updates in the middle are not drawn
    const omitted = counts[find("output", updates[0].output).number] - updates.length;
    updates.forEach((link, n) => { link.order = n + 1 + (n >= updates.length / 2 ? omitted : 0); });
  }

  // A sentence for each element: how it is computed, or where it is used.
  const named = (role, position) => role + (position.length ? `[${position.join(", ")}]` : "");
  const valued = (role, position) => {
    const text = find(role, position)?.text;
    return named(role, position) + (text === undefined ? "" : ` = ${text}`);
  };
  const inBrackets = (tuple) => (drawing.has_scalar_indices ? `${tuple[0]}` : `(${tuple.join(", ")})`);
  const written = (position) => components(position).map((cell) => cell.text);
  const tupleText = (position) => {
    const { selects } = tupleAt.get(`${position}`);
    const text = `${named("indices", position)} = ${inBrackets(written(position))}`;
    return `${selects}` === `${written(position)}` || !selects ? text : `${text}, which is ${inBrackets(selects)}`;
  };
  const selectedBy = (link) => `selected by ${tupleText(link.indices)}`;
  const EDGE = 5;
  const shorten = (texts, total = texts.length) => {
    const edge = total > texts.length ? texts.length / 2 : EDGE;
    if (total <= 2 * edge) return texts;
    return [...texts.slice(0, edge), `${total - 2 * edge} more`, ...texts.slice(-edge)];
  };
  const list = (linked, role) => shorten(linked.map((link) => named(role, link[role]))).join(", ");
  const gives = (link) => (link.result === null || kept ? "" : `, gives ${link.result}`);
  const updatesOf = (position) => find("output", position).links.filter((link) => link.updates);
  const drawn = (claim, linked) => (drawing.is_complete ? claim : linked.length ? `${claim}, of the drawn elements` : "");
  const sentences = {
    output({ position, number, links: linked }) {
      const text = valued("output", position);
      if (!scatters) {
        const [link] = linked;
        if (!link.data) return `${text} from the fill value, because ${tupleText(link.indices)} is out of bounds`;
        return `${text} from ${named("data", link.data)}, ${selectedBy(link)}`;
      }
      const [updates, total] = [updatesOf(position), counts[number]];
      if (!updates.length) return `${text} from ${named("data", position)}, which no index selects`;
      if (kept) {
        const link = kept === "first" ? updates[0] : updates.at(-1);
        const others = total < 2 ? "" : kept === "first" ? `; ${count(total - 1, "later update")} ignored`
          : ` and ${count(total - 1, "earlier update")}`;
        return `${text} from ${named("updates", link.updates)}, ${selectedBy(link)}, which overwrites`
          + ` ${valued("data", position)}${others}`;
      }
      const steps = updates.map((link, n) =>
        `${drawing.signs[n ? 1 : 0]} ${valued("updates", link.updates)}, ${selectedBy(link)}${gives(link)}`);
      return `${text}: ${[valued("data", position), ...shorten(steps, total)].join("; ")}`;
    },
    actual(cell) {
      const text = `${named("output", cell.position)} is ${cell.text}`;
      return cell.wrong ? `${text}, which differs from ${sentences.output(find("output", cell.position))}` : text;
    },
    data({ position, links: linked }) {
      const text = valued("data", position);
      if (!scatters) return text + drawn(` goes to ${list(linked, "output") || "no output"}`, linked);
      const updates = updatesOf(position);
      if (!updates.length) return `${text} is unchanged in ${named("output", position)}`;
      if (replaces) return `${text} is replaced by ${named("updates", updates[0].updates)}`;
      if (kept) return `${text} is overwritten by ${named("updates", updates.at(-1).updates)}`;
      const total = counts[find("output", position).number];
      return `${text} gets ${count(total, "update")} in ${named("output", position)}`;
    },
    indices({ position, tuple, component, wrong, links: linked }) {
      const text = valued("indices", position);
      const which = tuple.selects && inBrackets(tuple.selects);
      if (wrong) {
        const [low, high] = drawing.valid[component];
        const [axis, size] = [drawing.axis + component, low < 0 ? -low : high - low + 1];
        const valid = size ? `valid ${low}..${high}` : "no index is valid";
        return `${text} is out of bounds: axis ${axis} of data has size ${size}: ${valid}`
          + (which ? `; replaced by ${which}` : "");
      }
      const own = tuple.cells.length > 1 ? `, in ${tupleText(tuple.position)}`
        : which && `${tuple.selects}` !== `${written(tuple.position)}` ? `, which is ${which}` : "";
      if (!tuple.selects) return `${text}${own}, which selects nothing: it is out of bounds`;
      const outputs = list(linked, "output") || "no output";
      const use = scatters ? `applies ${list(linked, "updates") || "nothing"} to` : "is used for";
      return text + own + drawn(` ${use} ${outputs}`, linked);
    },
    updates({ position, links: [link] }) {
      const text = valued("updates", position);
      if (!link) return text + (drawing.is_complete ? " is dropped: its index is out of bounds" : "");
      const updates = updatesOf(link.output);
      const fate = kept === "first" && link !== updates[0] ? "; it is ignored: an earlier update was assigned"
        : kept === "last" && link !== updates.at(-1) ? "; a later update overwrites it" : gives(link);
      return `${text} goes to ${named("output", link.output)}, ${selectedBy(link)}${fate}`;
    },
  };

  // Arrays as tables of their last two axes; a long last axis is folded into lines.
  const [MAX_LENGTH, LINE, MAX_ROWS, MAX_TEXT] = [16, 10, 20, 8];
  const short = (text = "") => {
    if (text.length <= MAX_TEXT) return text;
    const number = Number(text);
    return Number.isNaN(number) ? `${text.slice(0, MAX_TEXT - 1)}…` : `${Number(number.toPrecision(5))}`;
  };
  const cellNode = (cell) => {
    cell.node = element("td", { id: cell.id, role: "gridcell", tabindex: cell.number ? -1 : 0,
      class: cell.wrong ? "wrong" : "", "aria-label": sentences[cell.role](cell) }, short(cell.text));
    cell.node.cell = cell;
    return cell.node;
  };
  const gap = (text) => element("td", { role: "presentation", class: "gap" }, text);
  const withGaps = (nodes, axis, size, mark) => nodes.flatMap((node, n) => {
    const before = axis[n] - (n ? axis[n - 1] : -1) > 1 ? [mark()] : [];
    return [...before, node, ...(n === axis.length - 1 && axis[n] < size - 1 ? [mark()] : [])];
  });
  const panels = ({ role, axes, shape }, isFolded) => {
    const [rank, array] = [shape.length, cellsOf[role]];
    const last = rank ? axes[rank - 1] : [0];
    const rowAxis = rank > 1 && !isFolded ? axes[rank - 2] : [null];
    const columns = isFolded ? LINE : last.length;
    const head = (names) => names.map((name) => element("th", { scope: "col" }, `${name}`));
    const step = rowAxis.length * last.length;
    return Array.from({ length: array.length / step }, (_, panel) => {
      const own = array.slice(panel * step, (panel + 1) * step);
      const rowCells = Array.from({ length: Math.ceil(step / columns) }, (_, n) => own.slice(n * columns, (n + 1) * columns));
      let rows = rowCells.map((row, n) => {
        const label = isFolded ? `${n * LINE}+` : rowAxis[n];
        const nodes = row.map(cellNode);
        return element("tr", {}, label === null ? null : element("th", { scope: "row" }, `${label}`),
          ...(isFolded || !rank ? nodes : withGaps(nodes, last, shape[rank - 1], () => gap("…"))));
      });
      if (rowAxis[0] !== null) {
        rows = withGaps(rows, rowAxis, shape[rank - 2], () => element("tr", { role: "presentation" }, gap("⋮")));
      }
      const names = isFolded ? head([...Array(LINE).keys()]) : withGaps(head(last), last, shape[rank - 1], () => gap(""));
      const corner = isFolded || rank > 1 ? element("td", { role: "presentation" }) : null;
      const leading = rank - (rowAxis[0] === null ? 1 : 2);
      const slices = rank ? [...own[0].position.slice(0, Math.max(leading, 0)), ":", ":"].slice(0, rank) : [];
      const label = rank ? `${role}[${slices.join(", ")}]` : role;
      const tables = [];
      for (let n = 0; n < rows.length; n += MAX_ROWS) {
        const header = rank ? [element("tr", {}, ...[corner, ...names].map((node) => node?.cloneNode(true) ?? null))] : [];
        tables.push(element("table", { role: "grid", "aria-readonly": "true", "aria-label": label }, ...header,
          ...rows.slice(n, n + MAX_ROWS)));
      }
      const caption = leading > 0 ? element("p", { class: "coordinates" }, label) : null;
      return element("div", { class: "panel" }, caption, ...tables);
    });
  };
  const figure = (grid) => {
    const title = grid.role === "actual" ? "output to verify" : grid.role;
    const rank = grid.shape.length;
    const isFolded = rank && grid.axes.at(-1).length > MAX_LENGTH && grid.axes.at(-1).length === grid.shape.at(-1);
    const axes = !rank ? "a scalar" : isFolded ? `axis ${rank - 1} in lines of ${LINE}`
      : `${rank > 1 ? `axis ${rank - 2} ↓ ` : ""}axis ${rank - 1} →`;
    const content = cellsOf[grid.role].length ? panels(grid, isFolded) : [element("p", { class: "hint" }, "no elements")];
    return element("figure", { class: `array ${grid.role}`, role: "group", "aria-label": `${title}, ${grid.type}`,
      "data-columns": isFolded ? LINE : grid.axes.at(-1)?.length ?? 1 },
    element("figcaption", {}, element("strong", {}, title), " ", element("span", { class: "type" }, grid.type),
      grid.name && grid.name !== grid.role ? element("span", { class: "file" }, grid.name) : null,
      element("span", { class: "axes" }, axes)),
    element("div", { class: "panels" }, ...content));
  };
  const sentence = element("p", { id: "sentence" });
  root.append(
    element("p", { class: "hint" }, "Point at an element, or tap it, to highlight the elements that it is computed"
      + " from or used for; Tab, Enter and the arrow keys move between elements."
      + (drawing.is_complete ? "" : " Large arrays are drawn in part: … and ⋮ mark omitted elements.")),
    element("div", { class: "arrays" }, ...drawing.grids.map(figure)), sentence);

  // The element that is current at first: a selected or wrong one, else one with links.
  const selected = drawing.selected.map(([role, position]) => find(role, position)).filter((cell) => cell);
  for (const cell of selected) cell.node.classList.add("selected");
  const mostUpdates = (a, b) => (counts[b.number] > counts[a.number] ? b : a);
  const outputs = cellsOf.output;
  const initial = cellsOf.actual?.find((cell) => cell.wrong) ?? selected[0] ?? cellsOf.indices.find((cell) => cell.wrong)
    ?? (scatters && outputs.length ? outputs.reduce(mostUpdates)
      : outputs.find((cell) => cell.links.some((link) => link.data)) ?? outputs[0]);
  const clear = () => {
    for (const node of root.querySelectorAll(".highlighted, .current")) {
      node.classList.remove("highlighted", "current");
      delete node.dataset.order;
    }
  };
  // Scroll a table that is wider than its panel to a highlighted cell outside the panel.
  const reveal = (node) => {
    const panel = node.closest(".panel");
    const [box, own] = [panel.getBoundingClientRect(), node.getBoundingClientRect()];
    if (own.left < box.left || own.right > box.right) panel.scrollLeft += (own.left + own.right - box.left - box.right) / 2;
  };
  const highlight = (cell) => {
    clear();
    if (!cell) return; // an empty output has no cells
    for (const { node } of [cell, ...cell.links.flatMap((link) => link.cells)]) {
      if (cell.links.length) node.classList.add("highlighted");
      if (node !== cell.node) reveal(node);
    }
    const updates = cell.links.filter((link) => link.order);
    if (/output|actual/.test(cell.role) && updates.length > 1) { // several updates are numbered
      for (const link of updates) {
        for (const { node } of [find("updates", link.updates), ...components(link.indices)]) node.dataset.order ??= link.order;
      }
    }
    cell.node.classList.add("current");
    sentence.textContent = cell.node.getAttribute("aria-label");
  };

  // When the mouse leaves, the cell selected by keyboard or touch is highlighted again.
  let focused = initial;
  root.addEventListener("pointerover", ({ target }) => target.cell && highlight(target.cell));
  root.addEventListener("pointerleave", () => highlight(focused));
  root.addEventListener("focusin", ({ target: { cell } }) => {
    if (!cell) return;
    for (const { node } of cellsOf[cell.role]) node.tabIndex = node === cell.node ? 0 : -1;
    focused = cell;
    highlight(cell);
  });
  const cellByKey = ({ role, number }, key) => {
    const columns = Number(root.querySelector(`.array.${role}`).dataset.columns);
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    if (key in steps) return cellsOf[role][number + steps[key]];
    if (key === "Home") return cellsOf[role][0];
    if (key === "End") return cellsOf[role].at(-1);
    const nodes = key === "Enter" ? [...root.querySelectorAll(".highlighted")] : [];
    return nodes.map((node) => node.cell).find((cell) => cell.role !== role);
  };
  root.addEventListener("keydown", (event) => {
    const { target: { cell } } = event;
    if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
    const next = cellByKey(cell, event.key);
    next?.node.focus();
    if (next || event.key.startsWith("Arrow")) event.preventDefault();
  });
  highlight(initial);
})();
