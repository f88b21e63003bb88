"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const status = document.getElementById("status");
  const say = (element) => { status.textContent = element.getAttribute("aria-label") || ""; };

  /* One stop for Tab in each picture; `move` says where a key leads from an element. */
  const roving = (items, move, arrived) => {
    if (!items.length) return;
    const go = (item, focus) => {
      for (const other of items) other.tabIndex = other === item ? 0 : -1;
      if (focus) item.focus();
      arrived(item, focus);
    };
    for (const item of items) {
      item.addEventListener("keydown", (event) => {
        if (event.target !== item || event.altKey || event.ctrlKey || event.metaKey) return;
        const to = move(item, event.key);
        if (to === undefined) return;
        event.preventDefault();
        if (to) go(to, true);
      });
      item.addEventListener("click", (event) => {
        const nearest = event.target.closest("[tabindex]");
        if (nearest === item) go(item, true);
      });
      item.addEventListener("focus", () => say(item));
    }
    go(items[0], false);
  };
  const along = (items, back, on) => (item, key) => {
    const at = items.indexOf(item);
    const to = { [back]: at - 1, [on]: at + 1, Home: 0, End: items.length - 1 }[key];
    return to === undefined ? undefined : items[to] || null;
  };

  /* The tree, and the attention map of the output that is chosen in it. */
  const maps = all(".map");
  let arrange = null;
  const nodes = all('[role="treeitem"]');
  const show = (place) => {
    if (!maps.some((map) => map.dataset.map === place)) return;
    for (const map of maps) map.hidden = map.dataset.map !== place;
    for (const node of nodes)
      if (node.dataset.map !== undefined)
        node.setAttribute("aria-selected", String(node.dataset.map === place));
    if (arrange) arrange();
  };
  const inOrder = along(nodes, "ArrowUp", "ArrowDown");
  roving(nodes, (node, key) => {
    if (key === "ArrowLeft") return node.parentElement.closest('[role="treeitem"]');
    if (key === "ArrowRight") return node.querySelector('[role="treeitem"]');
    return inOrder(node, key);
  }, (node, focus) => { if (focus && node.dataset.map !== undefined) show(node.dataset.map); });
  show("0");

  /* Left to right only where the whole tree fits; all bars begin at the last one's place. */
  const tree = document.querySelector(".tree");
  const bars = all(".bar", tree);
  const fit = () => {
    for (const bar of bars) bar.style.removeProperty("--shift");
    tree.classList.add("across");
    if (tree.scrollWidth > tree.clientWidth) tree.classList.remove("across");
    const lefts = bars.map((bar) => bar.getBoundingClientRect().left);
    const baseline = Math.max(...lefts);
    bars.forEach((bar, at) => bar.style.setProperty("--shift", `${baseline - lefts[at]}px`));
  };

  for (const map of maps) {
    const rows = all("tbody tr", map).map((row) => all("td", row));
    const columns = rows[0].length;
    map.style.setProperty("--columns", columns);
    for (const head of all("thead th", map)) head.classList.toggle("long", head.textContent.length > 2);
    const cells = rows.flat();
    const shift = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    roving(cells, (cell, key) => {
      const at = cells.indexOf(cell);
      const start = at - (at % columns);
      if (key === "Home") return cells[start];
      if (key === "End") return cells[start + columns - 1];
      if (!(key in shift)) return undefined;
      const to = at + shift[key];
      const sideways = Math.abs(shift[key]) === 1 && columns > 1;
      return sideways && (to < start || to >= start + columns) ? null : cells[to] || null;
    }, () => {});
  }

  /* A cue where a map goes on beyond its right edge. */
  const hint = () => {
    for (const map of maps) {
      const box = map.querySelector(".scroll");
      map.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    }
  };
  for (const map of maps) map.querySelector(".scroll").addEventListener("scroll", hint);
  arrange = () => { fit(); hint(); };
  arrange();
  addEventListener("resize", arrange);

  /* Only zero is 0 %, and only one is 100 %. */
  const percent = (p) => p <= 0 ? "0%" : p >= 1 ? "100%" : p < 0.001 ? "<0.1%" : p > 0.999 ? ">99.9%" : `${(100 * p).toFixed(1)}%`;

  /* Numbers on dark cells are light. */
  const paint = (cell, weight) => {
    cell.classList.toggle("on", weight > 0);
    cell.classList.toggle("strong", weight > 0.55);
    cell.style.setProperty("--w", weight);
  };
  for (const cell of all(".map td.on")) paint(cell, Number(cell.style.getPropertyValue("--w")));
  const head = document.getElementById("head");
  if (head) head.addEventListener("change", () => {
    const which = Number(head.value);
    for (const cell of all("td[data-heads]")) {
      const weights = cell.dataset.heads.split(" ").map(Number);
      const mean = weights.reduce((sum, weight) => sum + weight, 0) / weights.length;
      const weight = which < 0 ? mean : weights[which];
      paint(cell, weight);
      cell.textContent = weight >= 0.005 ? Math.round(100 * weight) : weight > 0 ? "<1" : "";
      const label = cell.getAttribute("aria-label").replace(/[^:]*$/, "");
      cell.setAttribute("aria-label", `${label} ${percent(weight)}`);
    }
  });

  const positions = all('[role="option"]');
  roving(positions, along(positions, "ArrowLeft", "ArrowRight"), (position, focus) => {
    for (const other of positions) other.setAttribute("aria-selected", String(focus && other === position));
  });
})();
