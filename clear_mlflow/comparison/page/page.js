"use strict";
// It sorts the leaderboard.
(() => {
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
})();
