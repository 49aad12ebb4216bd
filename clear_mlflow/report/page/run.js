"use strict";
// Shows the accuracy of each class in the selected cell; the page is complete without it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.querySelector("#map table");
  const classes = document.getElementById("classes");
  const { predictions, columns, rows } = data;
  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const line = (name, texts) => {
    const made = element("tr");
    made.append(...texts.map((text) => element(name, text)));
    return made;
  };

  // Decompress numbers in base64, once.
  const cache = new Map();
  const unpack = (text, Numbers) => {
    if (!cache.has(text)) {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      cache.set(text, new Response(stream).arrayBuffer().then((buffer) => new Numbers(buffer)));
    }
    return cache.get(text);
  };

  // For each true class, count the predicted classes in some buckets of a row. Labels are sorted by
  // bucket, then by true class.
  const countConfusions = async (row, buckets) => {
    const counts = await unpack(predictions.totals, Uint32Array);
    const labels = await unpack(predictions.rows[row], predictions.wide ? Uint16Array : Uint8Array);
    const size = predictions.classes.length;
    const pairs = Array.from({ length: size }, () => new Map());
    let start = 0;
    counts.forEach((count, group) => {
      const counter = pairs[group % size];
      if (buckets.includes(Math.floor(group / size))) {
        for (const label of labels.subarray(start, start + count)) counter.set(label, (counter.get(label) ?? 0) + 1);
      }
      start += count;
    });
    return pairs;
  };

  const sum = (counter) => [...counter.values()].reduce((total, count) => total + count, 0);
  const drawBars = (pairs) => {
    const made = element("table");
    made.createTHead().append(line("th", ["class", "", "%", "correct", "predicted instead"]));
    const body = made.createTBody();
    const lines = pairs
      .map((counter, truth) => [counter, truth, counter.get(truth) ?? 0, sum(counter)])
      .filter(([, , , total]) => total > 0);
    lines.sort((a, b) => a[2] / a[3] - b[2] / b[3] || a[1] - b[1]);
    lines.forEach(([counter, truth, correct, total]) => {
      const share = (100 * correct) / total;
      const wrong = [...counter].filter(([label]) => label !== truth).sort((a, b) => b[1] - a[1]);
      const row = line("td", ["", share.toFixed(1), `${correct} of ${total}`, ""]);
      const [bar, , , text] = row.cells;
      const fill = element("i", undefined, `v${Math.round(share)}`);
      fill.style.width = `${share}%`;
      bar.append(fill);
      text.append(...wrong.slice(0, 3).map(([label, count]) => element("span", `${predictions.classes[label]} ×${count}`)));
      [bar.className, text.className] = ["bar", "text"];
      const name = element("th", predictions.classes[truth]);
      name.scope = "row";
      row.prepend(name);
      body.append(row);
    });
    return made;
  };

  const drawConfusion = (pairs) => {
    const tiny = predictions.classes.length > 24;
    const made = element("table", undefined, tiny ? "heat tiny" : "heat");
    if (!tiny) {
      made.createTHead().append(line("th", predictions.classes));
      made.tHead.rows[0].prepend(element("td"));
    }
    const body = made.createTBody();
    pairs.forEach((counter, truth) => {
      const [total, row] = [sum(counter), element("tr")];
      if (!tiny) row.append(element("th", predictions.classes[truth]));
      predictions.classes.forEach((name, label) => {
        const count = counter.get(label) ?? 0;
        const share = total ? count / total : 0;
        const cell = element("td", undefined, total ? `v${Math.round(100 * Math.sqrt(share))}` : "x");
        if (!tiny && count) cell.textContent = share < 0.005 ? "<1" : Math.round(100 * share);
        if (count) cell.title = `${predictions.classes[truth]} predicted as ${name}: ${count} of ${total}`;
        row.append(cell);
      });
      body.append(row);
    });
    return made;
  };

  const region = (className, label, content) => {
    const made = element("div", undefined, className);
    made.tabIndex = 0;
    made.setAttribute("role", "region");
    made.setAttribute("aria-label", label);
    made.append(content);
    return made;
  };

  // The selection: a row of the table and one of its cells (0: the row's label, for all buckets).
  const lines = [...table.tBodies[0].rows];
  let current = null;
  const show = async (r, c) => {
    const [row, cell, cells] = [rows[r], lines[r].cells[c], data.cells[r]];
    const after = row === 0 ? "Before training" : `After bucket ${data.keys[row - 1]}`;
    document.getElementById("cell-title").textContent = c === 0
      ? `${after}, all buckets` : `${after}, tested on bucket ${data.keys[columns[c - 1]]}`;
    const value = document.getElementById("cell-value");
    const [mean, number] = data.means[r];
    // All buckets of a row that count, including those that the table leaves out.
    const buckets = c ? [columns[c - 1]] : data.keys.map((_, j) => j).filter((j) => !data.streaming || j >= row);
    const images = data.images && buckets.reduce((total, j) => total + data.images[j], 0);
    const measured = c ? cells[c - 1] !== null : number > 0;
    if (!measured) {
      value.textContent = "Not measured.";
    } else if (c === 0) {
      value.textContent = `${mean}${data.unit} on average over ${number} buckets`
        + (images === null || number < buckets.length ? "" : `, ${images} ${data.noun}`);
    } else {
      const counted = data.accuracy ? `: ${Math.round(cells[c - 1] * images)} of` : ",";
      value.textContent = `${cell.textContent}${data.unit}`
        + (images === null ? "" : `${counted} ${images} ${data.noun}`);
    }
    const parts = [];
    if (predictions && measured && predictions.rows[row] === undefined) {
      parts.push(element("p", "The page does not contain the predictions of this row.", "about"));
    } else if (predictions && measured) {
      const pairs = await countConfusions(row, buckets);
      parts.push(element("h4", "Accuracy per class, lowest first"), region("bars scroll", "Accuracy per class", drawBars(pairs)));
      if (pairs.length <= 150) {
        parts.push(element("h4", "Confusions"),
          element("p", "Rows: true class. Columns: predicted class. Cells: % of the true class; colours follow "
            + "the square root, so that rare confusions are visible.", "about"),
          region("confusion scroll", "Confusions", drawConfusion(pairs)));
      }
    }
    if (cell === current) classes.replaceChildren(...parts); // else the selection has changed
  };
  const choose = (r, c) => {
    if (current) {
      current.classList.remove("chosen");
      current.removeAttribute("aria-selected");
      current.tabIndex = -1;
    }
    current = lines[r].cells[c];
    current.classList.add("chosen");
    current.setAttribute("aria-selected", "true");
    current.tabIndex = 0;
    return show(r, c);
  };

  table.setAttribute("role", "grid");
  table.setAttribute("aria-label", document.querySelector("#matrix h2").textContent);
  lines.forEach((row, r) => [...row.cells].forEach((cell, c) => {
    cell.setAttribute("role", c === 0 ? "rowheader" : "gridcell");
    cell.tabIndex = -1;
    cell.addEventListener("click", () => choose(r, c));
  }));
  table.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const r = Math.min(Math.max(lines.indexOf(current.parentNode) + step[0], 0), lines.length - 1);
    const c = Math.min(Math.max(current.cellIndex + step[1], 0), columns.length);
    choose(r, c);
    current.focus();
  });
  document.getElementById("map").classList.add("ready");
  document.getElementById("how").hidden = false;
  document.getElementById("cell").hidden = false;
  choose(Math.max(rows.indexOf(data.start), 0), 0);
})();
