"use strict";
// The page is whole without this: it only shows the classes of the cell that is looked at.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.querySelector("#map table");
  const panel = document.getElementById("cell");
  const place = document.getElementById("classes");
  const { answers, columns, rows } = data;
  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const line = (name, texts, className) => {
    const made = element("tr");
    texts.forEach((text) => made.append(element(name, text, className)));
    return made;
  };
  const percent = (share) => (100 * share).toFixed(1);

  // What comes packed: deflated numbers in base64.
  const unpacked = async (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  };
  const known = new Map();
  const once = (key, make) => {
    if (!known.has(key)) known.set(key, make());
    return known.get(key);
  };
  const totals = () => once("totals", async () => new Uint32Array(await unpacked(answers.totals)));
  const labels = (row) => once(row, async () => {
    const buffer = await unpacked(answers.rows[row]);
    return answers.wide ? new Uint16Array(buffer) : new Uint8Array(buffer);
  });

  // How often each true class got each predicted class, in some buckets of a row. Labels are
  // sorted by bucket, then by true class.
  const confusion = async (row, buckets) => {
    const [counts, found] = await Promise.all([totals(), labels(row)]);
    const size = answers.classes.length;
    const pairs = Array.from({ length: size }, () => new Map());
    let at = 0;
    for (let bucket = 0; bucket * size < counts.length; bucket += 1) {
      const wanted = buckets.includes(bucket);
      for (let truth = 0; truth < size; truth += 1) {
        const end = at + counts[bucket * size + truth];
        for (; wanted && at < end; at += 1) {
          pairs[truth].set(found[at], (pairs[truth].get(found[at]) ?? 0) + 1);
        }
        at = end;
      }
    }
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
      const row = line("td", [undefined, percent(right / total), `${right} of ${total}`]);
      row.cells[0].className = "bar";
      const fill = element("i", undefined, `v${Math.round((100 * right) / total)}`);
      fill.style.width = `${(100 * right) / total}%`;
      row.cells[0].append(fill);
      const wrong = [...taken].filter(([label]) => label !== truth).sort((a, b) => b[1] - a[1]);
      const most = wrong.slice(0, 3).map(([label, count]) => `${answers.classes[label]}\u00a0×${count}`);
      const name = element("th", answers.classes[truth]);
      name.scope = "row";
      row.prepend(name);
      row.append(element("td", most.join(", "), "text"));
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
  let looked = 0;
  const show = async (r, c) => {
    const row = rows[r];
    const seen = data.cells[r].map((value, j) => (value === null ? -1 : j)).filter((j) => j >= 0);
    const chosen = c === 0 ? seen : [c - 1].filter((j) => seen.includes(j));
    const after = row === 0 ? "Before training" : `After bucket ${data.keys[row - 1]}`;
    document.getElementById("cell-title").textContent = c === 0
      ? `${after}, all buckets together` : `${after}, tested on bucket ${data.keys[columns[c - 1]]}`;
    const value = document.getElementById("cell-value");
    // All buckets of a row that are evidence, those that the table leaves out included.
    const buckets = c === 0
      ? data.keys.map((_, j) => j).filter((j) => !data.streaming || j >= row)
      : chosen.map((j) => columns[j]);
    const images = data.images && buckets.reduce((sum, j) => sum + data.images[j], 0);
    if (!chosen.length) {
      value.textContent = "Not measured.";
    } else if (c === 0) {
      const [mean, number] = data.means[r];
      value.textContent = `${mean}${data.unit} on average over ${number} buckets`
        + (images === null || number < buckets.length ? "" : `, ${images} ${data.what}`);
    } else {
      const share = data.cells[r][chosen[0]];
      const counted = data.accuracy ? `: ${Math.round(share * images)} of` : ",";
      value.textContent = `${lines[r].cells[c].textContent}${data.unit}`
        + (images === null ? "" : `${counted} ${images} ${data.what}`);
    }
    looked += 1;
    const mine = looked;
    if (!answers || !chosen.length) {
      place.replaceChildren();
      return;
    }
    if (answers.rows[row] === undefined) {
      place.replaceChildren(element("p", "The predictions of this row are not on the page.", "about"));
      return;
    }
    const pairs = await confusion(row, buckets);
    if (mine !== looked) return; // another cell was chosen meanwhile
    const parts = [element("h4", "Each class, the weakest first"),
      region("bars", "Each class", bars(pairs))];
    if (pairs.length <= 150) {
      parts.push(element("h4", "Which class is taken for which"),
        element("p", "Row: true class; column: predicted. Colours by the square root of the share, "
          + "so that rare mistakes are seen.", "about"),
        region("confusion", "Confusion", heat(pairs)));
    }
    place.replaceChildren(...parts);
  };

  // The table: one cell takes the focus, arrow keys move it, what has it is shown.
  const lines = [...table.tBodies[0].rows];
  const fragment = (r, c) => `#after-${rows[r]}${c === 0 ? "" : `-on-${columns[c - 1] + 1}`}`;
  let current = null;
  const choose = (r, c, focus) => {
    if (current) {
      current.classList.remove("chosen");
      current.removeAttribute("aria-selected");
      current.tabIndex = -1;
    }
    current = lines[r].cells[c];
    current.classList.add("chosen");
    current.setAttribute("aria-selected", "true");
    current.tabIndex = 0;
    if (focus) {
      current.focus({ preventScroll: false });
      // In a frame that holds the page as a text, addresses are those of the page around it.
      if (window.location.protocol !== "about:") window.history.replaceState(null, "", fragment(r, c));
    }
    return show(r, c);
  };
  const named = () => {
    const match = /^#after-(\d+)(?:-on-(\d+))?$/.exec(window.location.hash);
    const r = match ? rows.indexOf(Number(match[1])) : -1;
    const c = match && match[2] !== undefined ? columns.indexOf(Number(match[2]) - 1) + 1 : 0;
    return r < 0 || (match[2] !== undefined && c === 0) ? null : [r, c];
  };

  table.setAttribute("role", "grid");
  table.setAttribute("aria-label", document.querySelector("#matrix h2").textContent);
  lines.forEach((row, r) => [...row.cells].forEach((cell, c) => {
    cell.setAttribute("role", c === 0 ? "rowheader" : "gridcell");
    cell.tabIndex = -1;
    cell.addEventListener("click", () => choose(r, c, true));
  }));
  table.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step || !current) return;
    event.preventDefault();
    const r = Math.min(Math.max(lines.indexOf(current.parentNode) + step[0], 0), lines.length - 1);
    const c = Math.min(Math.max(current.cellIndex + step[1], 0), columns.length);
    choose(r, c, true);
  });
  window.addEventListener("hashchange", () => {
    const target = named();
    if (target) choose(...target, false);
  });
  document.getElementById("map").classList.add("ready");
  document.getElementById("how").hidden = false;
  panel.hidden = false;
  const first = named() ?? [Math.max(rows.indexOf(data.start), 0), 0];
  choose(...first, false);
})();
