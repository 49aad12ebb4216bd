"use strict";
// The form works without this: it makes short addresses of what is ticked, and counts it.
(() => {
  const form = document.getElementById("asked");
  const boxes = [...form.querySelectorAll("input[type=checkbox]")];
  const ticked = () => boxes.filter((box) => box.checked).map((box) => box.value.slice(0, 8));
  const count = () => {
    const chosen = ticked().length;
    document.getElementById("ticked").textContent = `${chosen} of ${boxes.length} ${boxes.length === 1 ? "run" : "runs"} ticked`;
    form.querySelector("[type=submit]").disabled = chosen === 0;
  };
  for (const [id, state] of [["all", true], ["none", false]]) {
    document.getElementById(id).addEventListener("click", () => {
      boxes.forEach((box) => { box.checked = state; });
      count();
    });
  }
  form.addEventListener("change", count);
  form.querySelector(".all").hidden = false;
  form.addEventListener("formdata", (event) => {
    const chosen = ticked();
    event.formData.delete("runs");
    if (!event.formData.get("filter")) event.formData.delete("filter");
    // All of them: runs to come are compared, too.
    if (chosen.length < boxes.length) event.formData.set("runs", chosen.join(","));
  });
})();
