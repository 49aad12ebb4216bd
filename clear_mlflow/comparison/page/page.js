"use strict";
// The page is whole without this: it only sorts the leaderboard and draws further differences.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  // Leaderboard: a click on a column's name sorts by it; a value that is not defined stays last.
  const board = document.getElementById("board");
  const body = board.tBodies[0];
  board.querySelectorAll("button[data-column]").forEach((button) => {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const first = button.dataset.first;
      const now = head.getAttribute("aria-sort");
      const order = now === null ? first : now === "ascending" ? "descending" : "ascending";
      board.querySelectorAll("th[aria-sort]").forEach((th) => th.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const column = Number(button.dataset.column);
      const value = (row) => row.cells[column].dataset.value;
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows];
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const numeric = !Number.isNaN(Number(x)) && !Number.isNaN(Number(y));
        return sign * (numeric ? Number(x) - Number(y) : x.localeCompare(y));
      });
      body.append(...rows);
      [...board.querySelectorAll("td.sorted")].forEach((td) => td.classList.remove("sorted"));
      rows.forEach((row) => row.cells[column].classList.add("sorted"));
    });
  });

  // Differences: A and B are chosen, the cells follow.
  const [a, b] = [document.getElementById("a"), document.getElementById("b")];
  if (!a) return;
  const place = document.getElementById("difference");
  const about = document.getElementById("difference-about");
  const verdicts = [...document.querySelectorAll("#pairs li")];
  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  const draw = () => {
    const [x, y] = [data.items[a.value], data.items[b.value]];
    const pair = [a.value, b.value].map(Number).sort((m, n) => m - n).join("-");
    verdicts.forEach((li) => { li.hidden = li.dataset.pair !== pair; });
    place.replaceChildren();
    if (x.setting !== y.setting || data.unlike.includes(pair)) {
      about.textContent = "No difference is shown: these were not tested on the same images by the "
        + "same protocol.";
      return;
    }
    const keys = data.keys[x.setting];
    const cells = x.cells.map((row, i) => row.map((value, j) =>
      value === null || y.cells[i][j] === null ? null : value - y.cells[i][j]));
    const largest = Math.max(0, ...cells.flat().map((value) => Math.abs(value ?? 0)));
    const scale = data.scales.find((step) => 100 * largest <= step + 1e-9) ?? 100;
    const marks = data.marks[pair];
    const table = element("table", undefined, "heat big");
    const head = table.createTHead().insertRow();
    head.append(element("td"));
    keys.forEach((key) => head.append(element("th", key)));
    const rows = table.createTBody();
    cells.forEach((row, i) => {
      if (row.every((value) => value === null)) return;
      const line = rows.insertRow();
      if (i === 0) line.className = "first";
      line.append(element("th", i === 0 ? "initial" : `after ${keys[i - 1]}`));
      row.forEach((value, j) => {
        const cell = element("td");
        if (value === null) {
          cell.className = "x";
          cell.append(element("i", "not measured"));
        } else {
          const points = 100 * value;
          const text = points.toFixed(1).replace("-0.0", "0.0");
          cell.textContent = points > 0 && text !== "0.0" ? `+${text}` : text;
          cell.className = `w${50 + Math.round((50 * points) / scale)}`;
          if (marks) {
            const p = marks[i][j];
            if (p !== null && p < data.alpha) cell.classList.add("s");
            if (p !== null) cell.title = `adjusted p = ${p < 0.001 ? "< 0.001" : p.toFixed(3)}`;
          }
        }
        line.append(cell);
      });
    });
    place.append(table);
    about.textContent = `A − B in percentage points; colours from −${scale} (B is better) to `
      + `+${scale} (A is better). ` + (marks
      ? "Outlined and bold: McNemar's test on the same test images, p adjusted by Holm over the "
        + `cells of this table, below ${data.alpha}.`
      : "No cell is tested: that needs the stored predictions of one run on each side.");
  };
  a.addEventListener("change", draw);
  b.addEventListener("change", draw);
  document.getElementById("swap").addEventListener("click", () => {
    [a.value, b.value] = [b.value, a.value];
    draw();
  });
  document.querySelector(".choose").hidden = false;
  draw();
})();
