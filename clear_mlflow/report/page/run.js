"use strict";
// The page is whole without this: it only shows the classes of the cell that is looked at.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.querySelector("#map table");
  const place = document.getElementById("classes");
  const { answers, columns, rows } = data;
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

  // What comes packed: deflated numbers in base64.
  const known = new Map();
  const unpacked = (text, Numbers) => {
    if (!known.has(text)) {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      known.set(text, new Response(stream).arrayBuffer().then((buffer) => new Numbers(buffer)));
    }
    return known.get(text);
  };

  // How often each true class got each predicted class, in some buckets of a row. Labels are
  // sorted by bucket, then by true class.
  const confusion = async (row, buckets) => {
    const counts = await unpacked(answers.totals, Uint32Array);
    const found = await unpacked(answers.rows[row], answers.wide ? Uint16Array : Uint8Array);
    const size = answers.classes.length;
    const pairs = Array.from({ length: size }, () => new Map());
    let at = 0;
    counts.forEach((count, group) => {
      const taken = pairs[group % size];
      if (buckets.includes(Math.floor(group / size))) {
        for (const label of found.subarray(at, at + count)) taken.set(label, (taken.get(label) ?? 0) + 1);
      }
      at += count;
    });
    return pairs;
  };

  const sum = (taken) => [...taken.values()].reduce((all, count) => all + count, 0);
  const bars = (pairs) => {
    const made = element("table");
    made.createTHead().append(line("th", ["class", "", "%", "right", "taken for"]));
    const body = made.createTBody();
    const lines = pairs.map((taken, truth) => [taken, truth, taken.get(truth) ?? 0, sum(taken)]);
    const there = lines.filter(([, , , total]) => total > 0);
    there.sort((a, b) => a[2] / a[3] - b[2] / b[3] || a[1] - b[1]);
    there.forEach(([taken, truth, right, total]) => {
      const share = (100 * right) / total;
      const wrong = [...taken].filter(([label]) => label !== truth).sort((a, b) => b[1] - a[1]);
      const row = line("td", ["", share.toFixed(1), `${right} of ${total}`, ""]);
      const [bar, , , text] = row.cells;
      const fill = element("i", undefined, `v${Math.round(share)}`);
      fill.style.width = `${share}%`;
      bar.append(fill);
      text.append(...wrong.slice(0, 3).map(([label, count]) => element("span", `${answers.classes[label]} ×${count}`)));
      [bar.className, text.className] = ["bar", "text"];
      const name = element("th", answers.classes[truth]);
      name.scope = "row";
      row.prepend(name);
      body.append(row);
    });
    return made;
  };

  const heat = (pairs) => {
    const tiny = answers.classes.length > 24;
    const made = element("table", undefined, tiny ? "heat tiny" : "heat");
    if (!tiny) {
      made.createTHead().append(line("th", answers.classes));
      made.tHead.rows[0].prepend(element("td"));
    }
    const body = made.createTBody();
    pairs.forEach((taken, truth) => {
      const [total, row] = [sum(taken), element("tr")];
      if (!tiny) row.append(element("th", answers.classes[truth]));
      answers.classes.forEach((name, label) => {
        const count = taken.get(label) ?? 0;
        const share = total ? count / total : 0;
        const cell = element("td", undefined, total ? `v${Math.round(100 * Math.sqrt(share))}` : "x");
        if (!tiny && count) cell.textContent = share < 0.005 ? "<1" : Math.round(100 * share);
        if (count) cell.title = `${answers.classes[truth]} taken for ${name}: ${count} of ${total}`;
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

  // What is looked at: a row of the table, and a cell of it (0: the row's name, for all buckets).
  const lines = [...table.tBodies[0].rows];
  let current = null;
  const show = async (r, c) => {
    const [row, cell, cells] = [rows[r], lines[r].cells[c], data.cells[r]];
    const after = row === 0 ? "Before training" : `After bucket ${data.keys[row - 1]}`;
    document.getElementById("cell-title").textContent = c === 0
      ? `${after}, all buckets together` : `${after}, tested on bucket ${data.keys[columns[c - 1]]}`;
    const value = document.getElementById("cell-value");
    const [mean, number] = data.means[r];
    // All buckets of a row that are evidence, those that the table leaves out included.
    const buckets = c ? [columns[c - 1]] : data.keys.map((_, j) => j).filter((j) => !data.streaming || j >= row);
    const images = data.images && buckets.reduce((all, j) => all + data.images[j], 0);
    const measured = c ? cells[c - 1] !== null : number > 0;
    if (!measured) {
      value.textContent = "Not measured.";
    } else if (c === 0) {
      value.textContent = `${mean}${data.unit} on average over ${number} buckets`
        + (images === null || number < buckets.length ? "" : `, ${images} ${data.what}`);
    } else {
      const counted = data.accuracy ? `: ${Math.round(cells[c - 1] * images)} of` : ",";
      value.textContent = `${cell.textContent}${data.unit}`
        + (images === null ? "" : `${counted} ${images} ${data.what}`);
    }
    const parts = [];
    if (answers && measured && answers.rows[row] === undefined) {
      parts.push(element("p", "The predictions of this row are not on the page.", "about"));
    } else if (answers && measured) {
      const pairs = await confusion(row, buckets);
      parts.push(element("h4", "Each class, the weakest first"), region("bars scroll", "Each class", bars(pairs)));
      if (pairs.length <= 150) {
        parts.push(element("h4", "Which class is taken for which"),
          element("p", "Row: true class; column: predicted. Colours by the square root of the share, "
            + "so that rare mistakes are seen.", "about"),
          region("confusion scroll", "Confusion", heat(pairs)));
      }
    }
    if (cell === current) place.replaceChildren(...parts); // else another was chosen meanwhile
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
