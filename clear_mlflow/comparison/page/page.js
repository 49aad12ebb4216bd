"use strict";
// Sorts the leaderboard by the column whose name is clicked; undefined values stay last.
(() => {
  const board = document.getElementById("board");
  const body = board.tBodies[0];
  board.querySelectorAll("button[data-column]").forEach((button) => {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const first = button.dataset.first;
      const previous = head.getAttribute("aria-sort");
      const order = previous === null ? first : previous === "ascending" ? "descending" : "ascending";
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
})();
