"use strict";
// It sorts the leaderboard, and subtracts one matrix from another.
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
  const element = (name, text) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // Where the colours end: the next round number, percentage points of accuracies.
  const scaleOf = (largest) => {
    if (data.score.accuracy) {
      return [2, 5, 10, 20, 30, 50, 100].find((step) => largest <= step + 1e-9) ?? 100;
    }
    if (largest === 0) return 1;
    const power = 10 ** Math.floor(Math.log10(largest));
    const step = [1, 2, 5, 10].find((m) => largest <= power * m * (1 + 1e-9));
    return Number((power * step).toPrecision(1));
  };
  // A difference with its sign: of accuracies one decimal of a point, of others three digits.
  const numberText = (value) => {
    const size = Math.abs(value);
    let text = value.toFixed(1);
    if (!data.score.accuracy) {
      const plain = size >= 1e-4 && size < 1e6;
      const decimals = Math.max(0, 2 - Math.floor(Math.log10(size)));
      text = size === 0 ? "0" : plain ? value.toFixed(decimals) : value.toExponential(2);
    }
    if (Number(text) === 0) return text.replace("-", "");
    return value > 0 ? `+${text}` : text;
  };

  const draw = () => {
    const [x, y] = [data.items[a.value], data.items[b.value]];
    const pair = [a.value, b.value].map(Number).sort((m, n) => m - n).join("-");
    const verdicts = document.querySelectorAll(`#verdicts li[data-pair="${pair}"]`);
    document.getElementById("pairs").replaceChildren(...[...verdicts].map((li) => li.cloneNode(true)));
    place.replaceChildren();
    if (x.setting !== y.setting || data.unlike.includes(pair)) {
      about.textContent = "No difference is shown: these were not tested on the same images by the "
        + "same protocol.";
      return;
    }
    const keys = data.keys[x.setting];
    const unit = data.score.accuracy ? 100 : 1;
    const cells = x.cells.map((row, i) => row.map((value, j) =>
      value === null || y.cells[i][j] === null ? null : unit * (value - y.cells[i][j])));
    // Of another score, untrained models may differ by far more than trained ones.
    const trained = cells.slice(1).flat().filter((value) => value !== null);
    const counted = data.score.accuracy || !trained.length ? cells.flat() : trained;
    const scale = scaleOf(Math.max(0, ...counted.map((value) => Math.abs(value ?? 0))));
    const marks = data.marks[pair];
    const table = element("table");
    table.className = "heat big";
    const head = table.createTHead().insertRow();
    head.append(element("td"), ...keys.map((key) => element("th", key)));
    const rows = table.createTBody();
    cells.forEach((row, i) => {
      if (row.every((value) => value === null)) return;
      const line = rows.insertRow();
      if (i === 0) line.className = "first";
      line.append(element("th", i === 0 ? "initial" : `after ${keys[i - 1]}`));
      row.forEach((value, j) => {
        const cell = line.insertCell();
        if (value === null) {
          cell.className = "x";
          cell.append(element("i", "not measured"));
          return;
        }
        cell.textContent = numberText(value);
        const gain = data.score.higher ? value : -value;
        cell.className = `w${Math.min(100, Math.max(0, 50 + Math.round((50 * gain) / scale)))}`;
        const p = marks ? marks[i][j] : null;
        if (p !== null && p < data.alpha) cell.classList.add("s");
        if (p !== null) cell.title = `adjusted p = ${p < 0.001 ? "< 0.001" : p.toFixed(3)}`;
      });
    });
    place.append(table);
    const [low, high] = data.score.higher ? ["B", "A"] : ["A", "B"];
    const tested = marks
      ? "Outlined and bold: McNemar's test on the same test images, p adjusted by Holm over the "
        + `cells of this table, below ${data.alpha}.`
      : `No cell is tested${data.score.accuracy
        ? ": that needs the stored predictions of one run on each side." : "."}`;
    about.textContent = `A − B in ${data.score.unit}; colours from −${scale} (${low} is better) to `
      + `+${scale} (${high} is better). ${tested}`;
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
