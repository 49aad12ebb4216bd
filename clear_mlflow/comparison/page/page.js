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

  // Where the colours of a difference end: the next round number.
  const scaleOf = (largest) => {
    if (data.score.accuracy) return data.scales.find((step) => 100 * largest <= step + 1e-9) ?? 100;
    if (largest === 0) return 1;
    const power = 10 ** Math.floor(Math.log10(largest));
    const step = [1, 2, 5, 10].find((m) => largest <= power * m * (1 + 1e-9));
    return Number((power * step).toPrecision(1));
  };
  // As the page's own table: accuracies in percentage points, others in three digits.
  const numberText = (value) => {
    if (data.score.accuracy) return value.toFixed(1).replace("-0.0", "0.0");
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-4 || size >= 1e6) return value.toExponential(2);
    return value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(size))));
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
    // Of another score, untrained models may differ by far more than trained ones.
    const trained = cells.slice(1).flat().filter((value) => value !== null);
    const counted = data.score.accuracy || !trained.length ? cells.flat() : trained;
    const largest = Math.max(0, ...counted.map((value) => Math.abs(value ?? 0)));
    const scale = scaleOf(largest);
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
          const points = data.score.accuracy ? 100 * value : value;
          const text = numberText(points);
          cell.textContent = points > 0 && text !== "0.0" ? `+${text}` : text;
          const gain = data.score.higher ? points : -points;
          cell.className = `w${Math.min(100, Math.max(0, 50 + Math.round((50 * gain) / scale)))}`;
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
    const [low, high] = data.score.higher ? ["B", "A"] : ["A", "B"];
    about.textContent = `A − B in ${data.score.unit}; colours from −${scale} (${low} is better) to `
      + `+${scale} (${high} is better). ` + (marks
      ? "Outlined and bold: McNemar's test on the same test images, p adjusted by Holm over the "
        + `cells of this table, below ${data.alpha}.`
      : data.score.accuracy
        ? "No cell is tested: that needs the stored predictions of one run on each side."
        : "No cell is tested.");
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
